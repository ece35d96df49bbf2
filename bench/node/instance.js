// The paper's figure 2 by hand, as in ../internal/river/flow.go: an instance is a row, and the join a counter in it.
export const table = `create table instance (
  wid bigint generated always as identity primary key, a1 text not null default 'ready', a2 text, a3 text,
  joined integer not null default 0) with (fillfactor = 70)`

export const insert = "insert into instance (a1) select 'ready' from generate_series(1, $1) returning wid"

// inTransaction has f run in one.
export async function inTransaction(pool, f) {
  const client = await pool.connect()
  try {
    await client.query('begin')
    const result = await f(client)
    await client.query('commit')
    return result
  } catch (e) {
    await client.query('rollback')
    throw e
  } finally {
    client.release()
  }
}
