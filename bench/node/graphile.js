// graphile-worker, as it comes, or with the batching that its documentation has in "Performance".
import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import pg from 'pg'
import { inTransaction, insert, table } from './instance.js'

const quiet = new Logger(() => () => {})
const batching = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }
const perInsert = 5000

export async function open({ database, tuned, concurrency, counter }) {
  const connectionString = `postgres:///${database}`
  // one connection for each job, and those that it needs itself
  const pool = new pg.Pool({ connectionString, max: concurrency + 8 })
  const report = e => console.error(e.message)
  pool.on('error', report).on('connect', client => client.on('error', report))
  const utils = await makeWorkerUtils({ pgPool: pool, logger: quiet })
  await utils.migrate()
  await pool.query(table)

  const steps = Object.fromEntries(['a2', 'a3'].map(a => [a, { name: `step_${a}`, text: `
    with done as (update instance set ${a} = 'x', joined = joined + 1 where wid = $1 and ${a} is null returning wid, joined)
    select graphile_worker.add_job('final', json_build_object('wid', wid)) from done where joined = 2` }]))
  const taskList = {
    noop({ n }) {
      counter.start(n)
      counter.done()
    },
    async step({ wid, set }, { withPgClient }) {
      await withPgClient(client => client.query({ ...steps[set], values: [wid] }))
    },
    async final({ wid }, { withPgClient }) {
      await withPgClient(client => client.query({ name: 'final', text: "update instance set a1 = 'x' where wid = $1", values: [wid] }))
      counter.done()
    }
  }
  let runner
  return {
    async fill(jobs) {
      for (let n = 0; n < jobs; n += perInsert) {
        await utils.addJobs(Array.from({ length: Math.min(perInsert, jobs - n) }, (_, i) => ({ identifier: 'noop', payload: { n: n + i } })))
      }
    },
    async start() {
      const worker = { concurrentJobs: concurrency, ...(tuned ? batching : {}) }
      runner = await run({ pgPool: pool, taskList, noHandleSignals: true, preset: { worker: { ...worker, logger: quiet } }, crontab: '' })
    },
    enqueue: n => utils.addJob('noop', { n }),
    begin: n => inTransaction(pool, async client => {
      const { rows } = await client.query(insert, [n])
      await client.query(`select graphile_worker.add_jobs(array(
        select row('step', json_build_object('wid', wid, 'set', a), null, null, null, null, null, null)::graphile_worker.job_spec
          from unnest($1::bigint[]) wid, unnest(array['a2', 'a3']) a))`, [rows.map(r => r.wid)])
      return rows.map(r => r.wid)
    }),
    async close() {
      await runner?.stop()
      await utils.release()
      await pool.end()
    }
  }
}
