// pg-boss with batches that are completed in the handler's transaction, fetched without a pause as long as there are
// full ones, and with notifications: what its documentation offers for throughput and for latency.
import pg from 'pg'
import { PgBoss } from 'pg-boss'
import { inTransaction, insert, table } from './instance.js'

const batchSize = 250
const perInsert = 5000

const steps = `
  with wanted as (
    select wid, bool_or(a = 'a2') a2, bool_or(a = 'a3') a3 from unnest($1::bigint[], $2::text[]) w (wid, a) group by wid),
  locked as (select wid from instance where wid = any ($1) order by wid for update)
  update instance i
     set a2 = case when w.a2 then 'x' else i.a2 end, a3 = case when w.a3 then 'x' else i.a3 end,
         joined = i.joined + (w.a2 and i.a2 is null)::integer + (w.a3 and i.a3 is null)::integer
    from wanted w join locked using (wid)
   where i.wid = w.wid returning i.wid, i.joined`

// executor lets pg-boss use a client of ours, in our transaction.
const executor = client => ({ executeSql: (text, values) => client.query(text, values) })

export async function open({ database, concurrency, counter }) {
  const connectionString = `postgres:///${database}`
  const pool = new pg.Pool({ connectionString, max: 4 })
  await pool.query(table)
  const boss = new PgBoss({ connectionString, max: 2 * concurrency + 8, useListenNotify: true })
  boss.on('error', e => console.error(e.message))
  await boss.start()
  for (const queue of ['noop', 'step', 'final']) await boss.createQueue(queue, { notify: true })

  const how = { batchSize, localConcurrency: concurrency, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
  const inTheirTransaction = { ...how, transactional: true }
  return {
    async fill(jobs) {
      for (let n = 0; n < jobs; n += perInsert) {
        await boss.insert('noop', Array.from({ length: Math.min(perInsert, jobs - n) }, (_, i) => ({ data: { n: n + i } })))
      }
    },
    async start() {
      await boss.work('noop', how, async jobs => {
        for (const job of jobs) counter.start(job.data.n)
        counter.done(jobs.length)
      })
      await boss.work('step', inTheirTransaction, async (jobs, tx) => {
        const { rows } = await tx.executeSql(steps, [jobs.map(j => j.data.wid), jobs.map(j => j.data.set)])
        const joined = rows.filter(r => r.joined === 2)
        if (joined.length > 0) await boss.insert('final', joined.map(r => ({ data: { wid: r.wid } })), { db: tx })
      })
      await boss.work('final', inTheirTransaction, async (jobs, tx) => {
        await tx.executeSql("update instance set a1 = 'x' where wid = any ($1)", [jobs.map(j => j.data.wid)])
        counter.done(jobs.length)
      })
    },
    enqueue: n => boss.send('noop', { n }),
    begin: n => inTransaction(pool, async client => {
      const { rows } = await client.query(insert, [n])
      const jobs = rows.flatMap(r => ['a2', 'a3'].map(set => ({ data: { wid: r.wid, set } })))
      await boss.insert('step', jobs, { db: executor(client) })
      return rows.map(r => r.wid)
    }),
    async close() {
      await boss.stop({ graceful: false, close: true })
      await pool.end()
    }
  }
}
