// A handler for worker.js: sets attributes, and records each job in a table, in the job's own transaction.
//
//   create table done (flow text, wid bigint, tgid integer, version bigint, primary key (flow, wid, tgid, version));
//
//   worker.js -f paper -t tr_a2 record.js '{"a2": "done"}' done
//
// PAUSE is how long the work takes, in seconds; with FAIL each job fails, for that reason.
'use strict';

const { setTimeout: sleep } = require('timers/promises');

module.exports = async function record(job, attributes, table) {
  await sleep(Number(process.env.PAUSE || 0) * 1000, undefined, { signal: job.signal });
  if (process.env.FAIL) throw new Error(process.env.FAIL);
  if (table) {
    await job.query(`insert into ${table} (flow, wid, tgid, version) values ($1, $2, $3, $4)`,
      [job.flow, job.wid, job.tgid, job.version]);
  }
  return JSON.parse(attributes);
};
