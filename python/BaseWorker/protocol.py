"""The worker's protocol, statement by statement; docs/protocol.md says why."""

from __future__ import annotations

import json
import math
import time
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple, Union

from .driver import Connection, Row
from .hints import Found, Outcome
from .job import Job, Key

PAGE = 1000   # jobs read from the pool at a time
TRIES = 16    # jobs tried in one round trip

State = Union[str, Mapping[str, Any]]

# SQLSTATEs that say what becomes of a job; with any other it has failed.
OUTCOMES = {
    'WED03': Outcome.GONE,   # somebody else has completed it, or it was withdrawn
    'WED08': Outcome.GONE,   # the instance has ended
    'WED16': Outcome.GONE,   # somebody else has leased it, or the lease has ended
    'WED17': Outcome.GONE,   # the instance is suspended: the job comes back
    'WED07': Outcome.SOON,   # final while other jobs pend: when they are done it may pass
    '40001': Outcome.SOON,
    '40P01': Outcome.SOON,
    '55P03': Outcome.SOON,
}

MISSING = {'42P01', '3F000'}  # no such table or schema: the flow was dropped
DROPPED = MISSING | {'XX000'}  # and what PostgreSQL says when that was a moment ago

# What a schema is when it is a flow: nobody but the extension's owner can make it look so.
FLOWS = """
    select n.nspname
      from pg_catalog.pg_extension e
      join pg_catalog.pg_namespace n on n.nspowner = e.extowner
      join pg_catalog.pg_class j on j.relnamespace = n.oid and j.relname = 'job_pool' and j.relowner = e.extowner
      join pg_catalog.pg_class f on f.relnamespace = n.oid and f.relname = 'wed_flow'
     where e.extname = 'wed_sql'
       and exists (select from pg_catalog.pg_trigger t join pg_catalog.pg_proc p on p.oid = t.tgfoid
                    where t.tgrelid = f.oid and t.tgname = 'zz_guard' and p.pronamespace = e.extnamespace)
       and has_schema_privilege(n.oid, 'usage') and has_table_privilege(j.oid, 'select')
       and has_any_column_privilege(f.oid, 'update')"""

OPEN = 'j.lckid is null and (j.available_at is null or j.available_at <= clock_timestamp())'


class Place(NamedTuple):
    """Where in a flow's pool the next page begins."""

    priority: int
    fired_at: str
    wid: int
    tgid: int


FIRST = Place(2 ** 31 - 1, '-infinity', 0, 0)


def prepare(connection: Connection) -> None:
    """Settings that the protocol relies on. A transition may take as long as its
    rule says, idle between statements; scans wait for no DDL."""
    connection.execute("""set idle_in_transaction_session_timeout = 0; set standard_conforming_strings = on;
        set datestyle = 'ISO'; set intervalstyle = 'postgres'""")


def prepare_listener(connection: Connection, trname: str) -> None:
    prepare(connection)
    connection.execute("set lock_timeout = '2s'")
    connection.execute(f'listen {connection.name(trname)}')


def has_extension(connection: Connection) -> bool:
    return bool(connection.execute("select 1 from pg_catalog.pg_extension where extname = 'wed_sql'"))


def flows(connection: Connection, trname: str) -> List[str]:
    """The flows whose jobs of the transition this role may perform."""
    text = connection.text(trname)
    rows = connection.execute(f"""select nspname from ({FLOWS} offset 0) s,
        wed_sql.visible_transitions(pg_catalog.format('%I.wed_flow', nspname)::regclass) as v
        where v is null or {text} = any (v)""")
    return [row[0] for row in rows]


def knows(connection: Connection, flow: str, trname: str) -> bool:
    """Whether a rule of the flow fires the transition, as far as this role can tell."""
    if trname == '_EXCPT':
        return True
    wed_flow, wed_trig = (connection.text(connection.name(flow, table)) for table in ('wed_flow', 'wed_trig'))
    granted, readable = connection.execute(f"""select wed_sql.visible_transitions({wed_flow}::regclass),
        has_table_privilege({wed_trig}, 'select')""")[0]
    if granted is not None or not readable:
        return granted is None or trname in granted
    return bool(connection.execute(f"""select 1 from {connection.name(flow, 'wed_trig')}
        where trname = {connection.text(trname)} limit 1"""))


def page(connection: Connection, flow: str, trname: str, after: Place) -> Tuple[List[Found], Optional[Place]]:
    """Pending jobs by priority, the longest pending first; and where the next page
    begins, None at the pool's end."""
    jobs, text = connection.name(flow, 'job_pool'), connection.text(trname)
    # Two ranges of the index, which is in this order.
    rows = connection.execute(f"""
        select wid, tgid, priority, fired_at::text from (
            (select j.wid, j.tgid, j.priority, j.fired_at from {jobs} j
              where j.trname = {text} and j.priority = {after.priority}
                and (j.fired_at, j.wid, j.tgid) > (timestamptz {connection.text(after.fired_at)}, {after.wid}, {after.tgid}) and {OPEN}
              order by j.fired_at, j.wid, j.tgid limit {PAGE})
            union all
            (select j.wid, j.tgid, j.priority, j.fired_at from {jobs} j
              where j.trname = {text} and j.priority < {after.priority} and {OPEN}
              order by j.priority desc, j.fired_at, j.wid, j.tgid limit {PAGE})) j
        order by priority desc, fired_at, wid, tgid limit {PAGE}""")
    found = [Found(Key(flow, wid, tgid), priority) for wid, tgid, priority, _ in rows]
    if len(rows) < PAGE:
        return found, None
    wid, tgid, priority, fired_at = rows[-1]
    return found, Place(priority, fired_at, wid, tgid)


def parse_notification(payload: str) -> Optional[Key]:
    """The job that a notification is about; None if it is no job's: anybody may notify anything."""
    try:
        job = json.loads(payload)
        key = Key(job['flow'], job['wid'], job['tgid'])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(key.flow, str) or type(key.wid) is not int or type(key.tgid) is not int:
        return None
    if not -2 ** 63 <= key.wid < 2 ** 63 or not -2 ** 31 <= key.tgid < 2 ** 31:
        return None
    return key


def lock(connection: Connection, trname: str, keys: List[Key]) -> Optional[Job]:
    """Begins a transaction and takes the lock of the first of the jobs (of one flow)
    that is pending and that nobody else has. None, and no transaction, if there is none."""
    flow = keys[0].flow
    jobs, text = connection.name(flow, 'job_pool'), connection.text(trname)
    wids = ','.join(str(key.wid) for key in keys)
    tgids = ','.join(str(key.tgid) for key in keys)
    began = time.monotonic()
    # Tried one by one, and the limit ends it: no lock is taken but that of the job
    # that is returned. CASE keeps the jobs that are gone from being locked.
    locked = connection.execute(f"""begin isolation level read committed read write;
        select c.wid, c.tgid from rows from (pg_catalog.unnest('{{{wids}}}'::bigint[]), pg_catalog.unnest('{{{tgids}}}'::integer[])) as c (wid, tgid)
         where case when exists (select from {jobs} j where j.wid = c.wid and j.tgid = c.tgid and j.trname = {text})
               then wed_sql.try_lock(c.wid, c.tgid) end
         limit 1""")
    if locked:
        wid, tgid = locked[0]
        # A statement of its own, whose snapshot is taken under the lock: before, the
        # job may have been completed, and fired anew.
        rows = connection.execute(f"""select j.version, j.payload::text, j.fired_at, extract(epoch from j.timeout)::float8,
                j.attempts, j.last_error
            from {jobs} j where j.wid = {wid} and j.tgid = {tgid} and j.trname = {text} order by j.version desc limit 1""")
        if rows:
            # Counted from before the transaction began, so that it ends here before the server ends it.
            return make_job(Key(flow, wid, tgid), trname, rows[0], began)
    connection.execute('rollback')
    return None


def make_job(key: Key, trname: str, row: Row, began: float) -> Job:
    version, state, fired_at, timeout, attempts, last_error = row
    return Job(key, trname, version=version, state=state, fired_at=fired_at, timeout=timeout, attempts=attempts,
               last_error=last_error, deadline=None if timeout is None else began + timeout)


def write(connection: Connection, job: Job, state: State) -> None:
    """Writes the next state under the job's lock."""
    table = connection.name(job.flow, 'wed_flow')
    if isinstance(state, str):
        # on a line of its own, WHERE is out of reach of a comment
        connection.execute(f'update {table} set {state}\nwhere wid = {job.wid}')
    else:
        values = connection.text(encode(state))
        names = sorted(state) or [any_attribute(connection, job.flow)]
        columns = ', '.join(connection.name(name) for name in names)
        source = ', '.join(connection.name('x', name) for name in names)
        # Each value is read as the attribute's type wants it, on the row as it then is.
        connection.execute(f"""update {table} f set ({columns}) =
            (select {source} from pg_catalog.jsonb_populate_record(f, {values}) x) where f.wid = {job.wid}""")
    if connection.rowcount != 1:
        raise RuntimeError(f'{connection.rowcount} instances written instead of 1')


def encode(state: Mapping[str, Any]) -> str:
    """JSON of attributes; what JSON has no type for (a date, a Decimal) as text."""
    return json.dumps(dict(state), default=str, allow_nan=False)


def any_attribute(connection: Connection, flow: str) -> str:
    """UPDATE wants a column also where nothing changes: any, set to itself."""
    name: str = connection.execute(f"""select attname from pg_catalog.pg_attribute
        where attrelid = {connection.text(connection.name(flow, 'wed_flow'))}::regclass and attnum > 0
          and not attisdropped and attname not in ('wid', '_stamp') order by attnum limit 1""")[0][0]
    return name


def lease(connection: Connection, key: Key, trname: str, seconds: float) -> Optional[Job]:
    """Leases a job; None if somebody else has it, or it is not pending."""
    began = time.monotonic()
    leased = connection.execute(f"""select lckid from wed_sql.lease_job(
        {connection.text(key.flow)}, {key.wid}, {key.tgid}, {interval(seconds)})""")
    if not leased:
        return None
    lckid = leased[0][0]
    rows = connection.execute(f"""select j.version, j.payload::text, j.fired_at, null, j.attempts, j.last_error
        from {connection.name(key.flow, 'job_pool')} j where j.wid = {key.wid} and j.tgid = {key.tgid}
         and j.lckid = {connection.text(lckid)} and j.trname = {connection.text(trname)}""")
    if not rows:
        return None  # it has been withdrawn at once
    job = make_job(key, trname, rows[0], began)
    job.lckid, job.deadline = lckid, began + seconds
    return job


def token_of(connection: Connection, job: Job) -> str:
    assert job.lckid is not None
    return f'{connection.text(job.flow)}, {job.wid}, {job.tgid}, {connection.text(job.lckid)}'


def extend(connection: Connection, job: Job, seconds: float) -> None:
    """The heartbeat of a lease."""
    began = time.monotonic()
    connection.execute(f'select wed_sql.extend({token_of(connection, job)}, {interval(seconds)})')
    job.deadline = began + seconds


def complete(connection: Connection, job: Job, state: State) -> None:
    """Writes the next state under the lease."""
    value = (f'{connection.text(state)}::text' if isinstance(state, str) else f'{connection.text(encode(state))}::jsonb')
    connection.execute(f'select wed_sql.complete({token_of(connection, job)}, {value})')


def release(connection: Connection, job: Job) -> bool:
    """Gives a leased job back, undone."""
    return bool(connection.execute(f'select wed_sql.release({token_of(connection, job)})')[0][0])


def fail(connection: Connection, job: Job, error: str) -> bool:
    """Has a failed attempt counted, in a transaction of its own."""
    text = connection.text(error.replace('\0', '').encode('utf-8', 'replace').decode('utf-8')[:10000])
    token = 'null' if job.lckid is None else connection.text(job.lckid)
    return bool(connection.execute(
        f'select wed_sql.fail({connection.text(job.flow)}, {job.wid}, {job.tgid}, {text}, {token})')[0][0])


def interval(seconds: float) -> str:
    return f"interval '{math.ceil(seconds * 1e6)} microseconds'"
