const patience = 30_000 // how long nothing may happen

// Counter counts what handlers have done, and remembers when they started.
export class Counter {
  n = 0
  started = new Map()
  waiting = []

  start(job) {
    if (!this.started.has(job)) this.started.set(job, performance.now())
  }

  done(n = 1) {
    this.n += n
    this.waiting = this.waiting.filter(w => {
      if (this.n < w.n) return true
      w.resolve()
      return false
    })
  }

  async wait(n) {
    if (this.n >= n) return
    let seen = this.n
    let watch
    try {
      await new Promise((resolve, reject) => {
        this.waiting.push({ n, resolve })
        watch = setInterval(() => {
          if (this.n === seen) reject(new Error(`nothing has happened for ${patience / 1000} s: ${this.n} of ${n} are done`))
          seen = this.n
        }, patience)
      })
    } finally {
      clearInterval(watch)
    }
  }
}
