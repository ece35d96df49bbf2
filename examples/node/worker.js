#!/usr/bin/env node
// Performs a transition of a WED-flow, with Node.js and pg.
//
//   worker.js -f FLOW -t TRANSITION [-l SECONDS] [-j JOBS] [-w SECONDS] [-d DSN] [-v] HANDLER.js [ARGUMENT...]
//
//   -l  lease each job for so long, instead of performing it in a transaction; the lease is extended while it runs
//   -j  perform so many jobs side by side (default 1), each on a connection of its own
//   -w  look for jobs at least so often, in seconds (default 5), if no notification has come
//   -d  connection URL; what it leaves out comes from PGHOST and the like
//   -v  say what is done, too
//
// HANDLER.js exports an async function of a job and the arguments. It returns the attributes to set, as an object, or
// null: then the job is tried again later. If it throws, the failure is reported. job.query(sql, values) runs a statement
// that commits together with the new state, or not at all. job.signal is aborted when the job's time is up.
// SIGTERM and SIGINT let handlers finish; the second one ends them. docs/protocol.md explains the protocol.
'use strict';

const path = require('path');
const { Client } = require('pg');

// SQLSTATEs after which a job is not ours any more, and those after which it is worth another try in a moment.
const GONE = new Set(['WED03', 'WED08', 'WED16', 'WED17']);
const SOON = new Set(['WED07', '40001', '40P01', '55P03']);

const quote = Client.prototype.escapeIdentifier;

// Twice as long after each failure, up to a limit, and never quite the same.
const backoff = (first, limit, failures) => Math.min(first * 2 ** Math.min(failures, 20), limit) * (0.5 + Math.random() / 2);

class Worker {
  constructor({ flow, transition, handler, lease = 0, jobs = 1, wakeup = 5, dsn = '', verbose = false }) {
    Object.assign(this, { flow, transition, handler, lease, jobs, wakeup, dsn, verbose });
    this.pool = `${quote(flow)}.job_pool`;
    this.table = `${quote(flow)}.wed_flow`;
    this.stopping = false;
    this.stopped = new Promise((resolve) => { this.onStop = resolve; });
    this.done = new Promise((resolve) => { this.onDone = resolve; }); // no job is running any more
    this.waiters = [];       // loops that have nothing to do
    this.news = 0;           // how often there was a reason to look
    this.putOff = new Map(); // jobs that are not to be tried before a time, and how often they have failed
    this.held = new Set();   // jobs that are leased
  }

  // Performs jobs until stop() is called; then finishes what is running.
  async run() {
    this.listener = await this.connect(true);
    try {
      await this.check();
    } catch (error) {
      await hangUp(this.listener);
      throw error;
    }
    this.chat(`worker for ${this.transition} of ${this.flow} started`);
    const timer = setInterval(() => this.wake(), this.wakeup * 1000);
    const loops = Array.from({ length: this.jobs }, () => this.loop());
    const listening = this.listen();
    try {
      await Promise.all(loops);
    } finally {
      this.stop();
      this.onDone();
      clearInterval(timer);
      await listening;
      await hangUp(this.listener);
    }
    this.chat(`worker for ${this.transition} of ${this.flow} stopped`);
  }

  stop() {
    this.stopping = true;
    this.onStop();
    this.waiters.splice(0).forEach((resume) => resume());
  }

  // Gives leases back, without waiting for what is running.
  async abort() {
    this.stop();
    await Promise.all([...this.held].map((job) => this.listener
      .query('select wed_sql.release($1, $2, $3, $4)', [this.flow, job.wid, job.tgid, job.lckid]).catch(() => {})));
  }

  say(...words) { console.error(new Date().toISOString(), ...words); }

  chat(...words) { if (this.verbose) this.say(...words); }

  // Connections.

  async connect(listens) {
    const client = new Client({
      connectionString: this.dsn || undefined,
      fallback_application_name: `worker.js ${this.transition}`,
      connectionTimeoutMillis: 30000,
      keepAlive: true,
    });
    client.lost = new Promise((resolve) => {
      const lose = (error) => {
        client.isLost = true;
        resolve(error);
      };
      client.on('error', lose);
      client.on('end', lose);
    });
    try {
      await client.connect();
      // a transition may take as long as its rule says, idle between statements
      await client.query('set idle_in_transaction_session_timeout = 0');
      if (listens) {
        client.on('notification', (message) => this.notified(message.payload));
        await client.query(`listen ${quote(this.transition)}`);
      }
    } catch (error) {
      await hangUp(client);
      throw error;
    }
    return client;
  }

  // Tries until it succeeds; undefined if the worker is to stop.
  async reconnect() {
    for (let failures = 0; !this.stopping; failures++) {
      try {
        return await this.connect(false);
      } catch (error) {
        const pause = backoff(100, 15000, failures);
        this.say(`could not connect, will try again in ${(pause / 1000).toFixed(1)} s: ${error.message}`);
        await this.pause(pause);
      }
    }
    return undefined;
  }

  // For work that is done: also while the worker ends, for as long as a lease lasts.
  async connectAgain(slot) {
    const until = Date.now() + this.lease * 1000;
    for (let failures = 0; ; failures++) {
      try {
        slot.client = await this.connect(false);
        return;
      } catch (error) {
        if (Date.now() > until) throw error;
        const pause = backoff(100, 15000, failures);
        this.say(`could not connect, will try again in ${(pause / 1000).toFixed(1)} s: ${error.message}`);
        await new Promise((resolve) => { setTimeout(resolve, pause); });
      }
    }
  }

  async check() {
    const { rows } = await this.listener.query('select to_regclass($1) is not null as there', [this.pool]);
    if (!rows[0].there) throw new Error(`there is no flow ${this.flow} in this database`);
    // a worker role does not see the rules, but knows its own transitions
    const { rows: [{ granted }] } = await this.listener.query('select wed_sql.visible_transitions($1::regclass) as granted', [this.table]);
    if (granted && !granted.includes(this.transition)) {
      throw new Error(`this role may not perform ${this.transition} in flow ${this.flow}: see wed_sql.grant_worker`);
    }
    if (!granted && this.transition !== '_EXCPT') {
      const { rowCount } = await this.listener.query(`select from ${quote(this.flow)}.wed_trig where trname = $1`, [this.transition]);
      if (rowCount === 0) throw new Error(`no rule of flow ${this.flow} fires ${this.transition}`);
    }
  }

  // Keeps the notifications coming, and the leases of what is running when the worker is to stop.
  async listen() {
    let over = false;
    this.done.then(() => { over = true; });
    for (let failures = 0; !over;) {
      await Promise.race([this.listener.lost, this.done]);
      if (over || (this.stopping && !this.lease)) return;
      const pause = backoff(100, this.held.size > 0 ? this.lease * 333 : 15000, failures);
      this.say(`lost the notifications, will listen again in ${(pause / 1000).toFixed(1)} s`);
      await this.pause(pause, this.stopping ? this.done : this.stopped);
      if (over) return;
      try {
        this.listener = await this.connect(true);
        failures = 0;
        this.wake(); // for what was fired meanwhile
        await Promise.all([...this.held].map((job) => this.beat(job)));
      } catch (error) {
        failures += 1;
        this.say(`could not connect: ${error.message}`);
      }
    }
  }

  // A notification is a hint: other flows may have the channel, and anybody may notify anything.
  notified(payload) {
    try {
      if (JSON.parse(payload).flow === this.flow) this.wake();
    } catch {
      // nothing of ours
    }
  }

  wake() {
    this.news += 1;
    const resume = this.waiters.shift();
    if (resume) resume();
  }

  pause(milliseconds, end = this.stopped) {
    let timer;
    return Promise.race([end, new Promise((resolve) => { timer = setTimeout(resolve, milliseconds); })])
      .finally(() => clearTimeout(timer));
  }

  // Jobs.

  async loop() {
    const slot = { client: undefined, failures: 0 };
    while (!this.stopping) {
      if (!slot.client || slot.client.isLost) {
        slot.client = await this.reconnect();
        if (!slot.client) return;
      }
      const { news } = this;
      let job;
      try {
        job = await this.take(slot.client);
      } catch (error) {
        this.say(`could not take a job: ${error.message}`);
        if (!this.lease) await rollBack(slot.client);
        await this.pause(backoff(100, 15000, slot.failures));
        slot.failures += 1;
        continue;
      }
      slot.failures = 0;
      if (job) {
        this.wake(); // there may be more
        await this.perform(slot, job);
      } else if (news === this.news && !this.stopping) {
        await new Promise((resolve) => { this.waiters.push(resolve); });
      }
    }
    await hangUp(slot.client);
  }

  // The first job that is pending and that nobody else has. They are tried one by one, and the limit ends it: no lock is
  // taken but the one of that job.
  async take(client) {
    const now = Date.now();
    for (const [key, { until }] of this.putOff) if (until + 60000 <= now) this.putOff.delete(key);
    const skipped = [...this.putOff].filter(([, { until }]) => until > now).map(([key]) => key.split(' '));
    const candidates = `select j.wid, j.tgid from ${this.pool} j
      where j.trname = $1 and j.lckid is null and (j.available_at is null or j.available_at <= clock_timestamp())
        and not exists (select from unnest($2::bigint[], $3::integer[]) s (wid, tgid) where s.wid = j.wid and s.tgid = j.tgid)
      order by j.priority desc, j.fired_at, j.wid, j.tgid offset 0`;
    const values = [this.transition, skipped.map((key) => key[0]), skipped.map((key) => key[1])];
    const begun = Date.now();
    let taken;
    if (this.lease) {
      taken = await client.query(`select l.wid, l.tgid, l.lckid from (${candidates}) c,
        lateral wed_sql.lease_job($4, c.wid, c.tgid, $5 * interval '1 s') l limit 1`, [...values, this.flow, this.lease]);
    } else {
      await client.query('begin isolation level read committed read write');
      taken = await client.query(`select c.wid, c.tgid, null as lckid from (${candidates}) c
        where wed_sql.try_lock(c.wid, c.tgid) limit 1`, values);
    }
    if (taken.rows.length > 0) {
      // Until the lock was taken the job may have been completed, and fired anew: what counts is a look under it.
      const { wid, tgid, lckid } = taken.rows[0];
      const { rows } = await client.query(`select j.wid, j.tgid, j.trname, j.version, j.payload, j.fired_at, j.attempts,
          j.last_error, j.lckid, extract(epoch from j.timeout)::float8 as timeout
        from ${this.pool} j where j.wid = $1 and j.tgid = $2 and j.trname = $3 and ($4::text is null or j.lckid = $4)
        order by j.version desc limit 1`, [wid, tgid, this.transition, lckid]);
      if (rows.length > 0) return { flow: this.flow, begun, ...rows[0] };
    }
    if (!this.lease) await rollBack(client);
    return undefined;
  }

  async perform(slot, job) {
    const what = `wid ${job.wid}, tgid ${job.tgid}:`;
    const key = `${job.wid} ${job.tgid}`;
    let failed;
    try {
      const state = await this.handle(slot, job);
      if (state === null || state === undefined) {
        this.chat(what, 'aborted, nothing returned');
        failed = { outcome: 'aborted' };
      } else if (typeof state !== 'object' || Array.isArray(state)) {
        throw new TypeError('the handler has not returned an object');
      } else {
        // Under a lease, and with nothing written yet, any connection will do.
        if (slot.client.isLost && this.lease && !job.wrote) await this.connectAgain(slot);
        await this.complete(slot.client, job, state);
        this.putOff.delete(key);
        this.chat(what, 'done');
      }
    } catch (thrown) {
      const error = thrown instanceof Error ? thrown : new Error(String(thrown)); // whatever it is
      failed = { outcome: judge(slot.client, error), error };
    } finally {
      this.held.delete(job);
    }
    if (failed) await this.settle(slot.client, job, what, key, failed);
  }

  // Calls the handler, with the job's transaction, for as long as the job's time lasts.
  async handle(slot, job) {
    const abort = new AbortController();
    let open = true;
    job.wrote = !this.lease;
    job.signal = abort.signal;
    job.query = async (...statement) => {
      if (!open) throw new Error('the job is over');
      if (!job.wrote) {
        if (slot.client.isLost) await this.connectAgain(slot);
        job.wrote = true; // with a lease it begins here: keep it for the end of the work
        await slot.client.query('begin isolation level read committed read write');
      }
      return slot.client.query(...statement);
    };
    let timer;
    const over = new Promise((_, reject) => {
      job.expire = (why) => {
        const error = new Error(why);
        abort.abort(error);
        reject(error);
      };
    });
    over.catch(() => {});
    if (this.lease) {
      this.held.add(job);
      timer = setInterval(() => this.beat(job), (this.lease * 1000) / 3);
    } else if (job.timeout !== null) {
      const left = job.begun + job.timeout * 1000 - Date.now();
      if (left < 2 ** 31) timer = setTimeout(() => job.expire("the job's time is up"), left);
    }
    try {
      return await Promise.race([this.handler(job), over]);
    } finally {
      open = false;
      clearTimeout(timer);
      clearInterval(timer);
    }
  }

  // Extends a lease. One that was not, because the connection was away, is extended next time.
  async beat(job) {
    try {
      await this.listener.query("select wed_sql.extend($1, $2, $3, $4, $5 * interval '1 s')",
        [this.flow, job.wid, job.tgid, job.lckid, this.lease]);
    } catch (error) {
      if (GONE.has(error.code) && this.held.has(job)) job.expire(`the lease has ended: ${error.message}`);
    }
  }

  // Writes the new state, by the type of each attribute, on the row as it then is.
  async complete(client, job, state) {
    if (this.lease) {
      if (!job.wrote) {
        job.wrote = true;
        await client.query('begin isolation level read committed read write');
      }
      await client.query('select wed_sql.complete($1, $2, $3, $4, $5::jsonb)',
        [this.flow, job.wid, job.tgid, job.lckid, JSON.stringify(state)]);
    } else {
      const names = Object.keys(state).length > 0 ? Object.keys(state).sort() : [await this.anyAttribute(client)];
      const written = await client.query(`update ${this.table} f
        set (${names.map(quote)}) = (select ${names.map((name) => `x.${quote(name)}`)} from jsonb_populate_record(f, $1) x)
        where f.wid = $2`, [JSON.stringify(state), job.wid]);
      if (written.rowCount !== 1) throw new Error(`${written.rowCount} instances written instead of 1`);
    }
    await client.query('commit');
  }

  // UPDATE wants a column also where nothing changes: any, set to itself.
  async anyAttribute(client) {
    const { rows } = await client.query(`select attname from pg_catalog.pg_attribute where attrelid = $1::regclass
      and attnum > 0 and not attisdropped and attname not in ('wid', '_stamp') limit 1`, [this.table]);
    return rows[0].attname;
  }

  // A timer of Node.js may be early, by as long as what runs before it has taken.
  wakeAt(time) {
    const left = time - Date.now();
    if (left > 0) setTimeout(() => this.wakeAt(time), left + 1).unref();
    else this.wake();
  }

  // What becomes of a job that was not completed.
  async settle(client, job, what, key, { outcome, error }) {
    if (job.wrote) await rollBack(client);
    if (outcome === 'gone') {
      this.putOff.delete(key);
      this.chat(what, `not to be had any more: ${error.message}`);
      return;
    }
    const { failures } = this.putOff.get(key) || { failures: 0 };
    const pause = outcome === 'soon' ? backoff(10, 1000, failures) : backoff(500, 60000, failures);
    this.putOff.set(key, { until: Date.now() + pause, failures: failures + 1 });
    this.wakeAt(this.putOff.get(key).until);
    if (outcome === 'lost') {
      this.say(what, `lost the connection, will look at it again: ${error.message}`);
      return;
    }
    try {
      if (outcome === 'failed') {
        this.say(what, this.verbose ? error.stack : error.message);
        await client.query('select wed_sql.fail($1, $2, $3, $4, $5)',
          [this.flow, job.wid, job.tgid, error.message.replace(/\0/g, ''), job.lckid]);
      } else {
        if (error) this.chat(what, `lost a race, will redo it: ${error.message}`);
        if (this.lease) {
          await client.query('select wed_sql.release($1, $2, $3, $4)', [this.flow, job.wid, job.tgid, job.lckid]);
        }
      }
    } catch (e) {
      this.say(what, `not reported: ${e.message}`);
    }
  }
}

function judge(client, error) {
  if (GONE.has(error.code)) return 'gone';
  if (SOON.has(error.code)) return 'soon';
  // It may have been committed. If so, it is not found again.
  if (client.isLost || /^(08|57P)/.test(error.code || '') || /^Connection terminated/.test(error.message)) return 'lost';
  return 'failed';
}

// A connection that cannot even do that is closed.
async function rollBack(client) {
  try {
    await client.query('rollback');
  } catch {
    client.isLost = true;
    await hangUp(client);
  }
}

async function hangUp(client) {
  if (!client) return; // told to stop before it had connected
  let timer;
  await Promise.race([client.end().catch(() => {}), new Promise((resolve) => { timer = setTimeout(resolve, 1000); })]);
  clearTimeout(timer);
}

function usage(problem) {
  console.error(`error: ${problem}
usage: worker.js -f FLOW -t TRANSITION [-l SECONDS] [-j JOBS] [-w SECONDS] [-d DSN] [-v] HANDLER.js [ARGUMENT...]`);
  process.exit(2);
}

function readArguments(words) {
  const options = {};
  const named = { '-f': 'flow', '-t': 'transition', '-l': 'lease', '-j': 'jobs', '-w': 'wakeup', '-d': 'dsn' };
  let i = 0;
  for (; i < words.length && words[i].startsWith('-'); i++) {
    if (words[i] === '-v') options.verbose = true;
    else if (named[words[i]] && i + 1 < words.length) options[named[words[i]]] = words[++i];
    else usage(`what is ${words[i]}?`);
  }
  for (const name of ['lease', 'jobs', 'wakeup']) {
    if (name in options) {
      options[name] = Number(options[name]);
      if (!(options[name] > 0 && options[name] < 1e6)) usage(`${name} is a positive number`);
    }
  }
  if (!options.flow || !options.transition || i >= words.length) usage('a flow, a transition and a handler are needed');
  const handler = require(path.resolve(words[i]));
  const rest = words.slice(i + 1);
  return { ...options, handler: async (job) => handler(job, ...rest) };
}

async function main() {
  const worker = new Worker(readArguments(process.argv.slice(2)));
  let signals = 0;
  for (const name of ['SIGTERM', 'SIGINT']) {
    process.on(name, async () => {
      signals += 1;
      if (signals === 1) return worker.stop();
      const number = name === 'SIGINT' ? 2 : 15;
      setTimeout(() => process.exit(128 + number), 1000);
      await worker.abort();
      return process.exit(128 + number);
    });
  }
  await worker.run();
}

module.exports = { Worker };

if (require.main === module) {
  main().catch((error) => {
    console.error(`error: ${error.message || error}`);
    process.exitCode = 1;
  });
}
