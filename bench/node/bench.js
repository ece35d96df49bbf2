// One system in one database, told by lines of JSON on standard input what to do; each is answered by a line on
// standard output. See ../internal/node, which is at the other end.
import { createInterface } from 'node:readline'
import { Counter } from './counter.js'

const systems = { graphile: () => import('./graphile.js'), pgboss: () => import('./pgboss.js') }
const counter = new Counter()
let session

const now = () => performance.timeOrigin + performance.now()

// every calls f so often, the first time after one interval.
async function every(ms, times, f) {
  const began = performance.now()
  for (let i = 0; i < times; i++) {
    await new Promise(done => setTimeout(done, began + ms * (i + 1) - performance.now()))
    await f(i)
  }
}

const commands = {
  async open({ system, ...options }) {
    session = await (await systems[system]()).open({ ...options, counter })
  },
  fill: ({ jobs }) => session.fill(jobs),
  start: () => session.start(),
  async begin({ instances, perTransaction }) {
    for (let n = 0; n < instances; n += perTransaction) await session.begin(Math.min(perTransaction, instances - n))
  },
  handled: ({ n }) => counter.wait(n),
  // how many milliseconds after its commit each job was started
  async pickups({ jobs, ms }) {
    const committed = []
    await every(ms, jobs, async i => {
      await session.enqueue(i)
      committed[i] = performance.now()
    })
    await counter.wait(jobs)
    return committed.map((at, i) => Math.max(counter.started.get(i) - at, 0))
  },
  // when each instance was begun, in milliseconds since 1970
  async starts({ instances, ms }) {
    const begun = []
    await every(ms, instances, async () => {
      const at = now()
      const [wid] = await session.begin(1)
      begun.push({ wid: Number(wid), at })
    })
    return begun
  },
  close: () => session?.close()
}

for await (const line of createInterface({ input: process.stdin })) {
  const { what, ...args } = JSON.parse(line)
  let answer
  try {
    answer = { result: (await commands[what](args)) ?? null }
  } catch (e) {
    answer = { error: e.stack ?? String(e) }
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
  if (what === 'close') process.exit(0)
}
process.exit(0)
