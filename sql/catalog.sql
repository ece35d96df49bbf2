-- What wed_sql keeps about all flows of the database.

revoke all on schema wed_sql from public;
grant usage on schema wed_sql to public;

-- tgid is an integer, because the lock of a job is pg_try_advisory_xact_lock(wid, tgid), and is
-- unique in the database, because that lock is.
create sequence wed_sql.tgid_seq as integer;

create table wed_sql.flow (
    flow_id       integer generated always as identity,
    wed_flow      regclass not null,
    wed_attr      regclass not null,
    wed_trig      regclass not null,
    job_pool      regclass not null,
    wed_trace     regclass not null,
    excpt_tgid    integer not null default nextval('wed_sql.tgid_seq'),
    rules_version bigint not null default 0,
    wed_event     regclass not null,
    consistent    text,
    max_states    bigint,
    constraint flow_pkey primary key (flow_id),
    constraint flow_wed_flow_key unique (wed_flow),
    constraint flow_wed_attr_key unique (wed_attr),
    constraint flow_wed_trig_key unique (wed_trig),
    constraint flow_excpt_tgid_key unique (excpt_tgid)
);

comment on table wed_sql.flow is 'WED-flows of this database; the name of a flow is that of its schema';
comment on column wed_sql.flow.excpt_tgid is 'tgid of the jobs of transition _EXCPT of this flow';
comment on column wed_sql.flow.rules_version is 'number of the definition in force: each change of attributes or rules makes a new one';
comment on column wed_sql.flow.consistent is 'condition of the states that wed_sql.compensate() leads back to; see wed_sql.alter_flow()';
comment on column wed_sql.flow.max_states is 'number of states that an instance may go through without an intervention; null: wed_sql.max_states';

-- What is kept about a flow besides has no foreign keys, as a parallel pg_restore loads the tables in any order.
create function wed_sql.flow_deleted() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from wed_sql.rule where flow_id = old.flow_id;
    delete from wed_sql.worker where flow_id = old.flow_id;
    delete from wed_sql.followed where flow_id = old.flow_id;
    delete from wed_sql.timer where flow_id = old.flow_id;
    delete from wed_sql.signal where flow_id = old.flow_id;
    perform wed_sql.forget_counters(old.flow_id);
    return null;
end
$$;

revoke all on function wed_sql.flow_deleted() from public;

comment on function wed_sql.flow_deleted() is 'Trigger of wed_sql.flow: forgets the rest.';

create trigger flow_deleted after delete on wed_sql.flow
    for each row execute function wed_sql.flow_deleted();

-- Every version of every rule: a state is judged by the rules in force when it was written, also
-- when the follower reads it much later.
create table wed_sql.rule (
    flow_id     integer not null,
    tgid        integer not null,
    valid_from  bigint not null,
    valid_until bigint not null default 9223372036854775807,
    tgname      text,
    trname      text,
    cname       text,
    cpred       text not null,
    cfinal      boolean not null,
    enabled     boolean not null,
    timeout     interval,
    delay       interval,
    action      text,
    withdrawable boolean not null,
    priority    integer not null,
    max_attempts integer,
    backoff     interval not null,
    max_backoff interval not null,
    undo        text,
    constraint rule_pkey primary key (tgid, valid_from)
);
create index rule_in_force on wed_sql.rule (flow_id, valid_until);

comment on table wed_sql.rule is 'versions of the WED-triggers: version v of a definition consists of those with valid_from <= v < valid_until';
comment on column wed_sql.rule.valid_until is 'exclusive; the largest bigint while the version is in force';

-- What is due at a time. Whoever puts a row here need not wake anybody: it is published, and the follower reads it.
create table wed_sql.timer (
    flow_id integer not null,
    wid     bigint not null,
    tgid    integer not null,
    kind    "char" not null,
    version bigint not null,
    due_at  timestamp with time zone not null,
    constraint timer_pkey primary key (flow_id, wid, tgid, kind, version)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
create index timer_delay on wed_sql.timer (due_at) where kind = 'd';
create index timer_other on wed_sql.timer (due_at) where kind <> 'd';

comment on table wed_sql.timer is 'what the engine has to do at a time';
comment on column wed_sql.timer.tgid is 'WED-trigger that it concerns; 0: the instance';
comment on column wed_sql.timer.kind is 'd: the delay of a WED-trigger is over; a: an action is due; r: a job that has failed may be tried again; l: a lease runs out; s: a suspension ends; w: a withdrawn job was in use; g: a signal may be delivered';
comment on column wed_sql.timer.version is 'number of the WED-state that it belongs to';
comment on column wed_sql.timer.due_at is 'when';

-- Signals that nobody was waiting for, kept until an instance does.
create table wed_sql.signal (
    signal_id  bigint generated always as identity,
    flow_id    integer not null,
    trname     text not null,
    wid        bigint,
    condition  text,
    set_clause text not null,
    role       regrole not null,
    sent_at    timestamp with time zone not null default clock_timestamp(),
    expires_at timestamp with time zone,
    last_error text,
    constraint signal_pkey primary key (signal_id)
);
create index signal_trname on wed_sql.signal (flow_id, trname, wid, signal_id);

comment on table wed_sql.signal is 'signals kept by wed_sql.signal() until an instance waits for them';
comment on column wed_sql.signal.wid is 'instance that it is for; null: the first that satisfies condition';
comment on column wed_sql.signal.condition is 'what SQL accepts after WHERE, over wed_flow';
comment on column wed_sql.signal.set_clause is 'what SQL accepts after SET: the state that it leads to';
comment on column wed_sql.signal.role is 'who has sent it, and as whom it is delivered';
comment on column wed_sql.signal.expires_at is 'it is forgotten then; null: never';
comment on column wed_sql.signal.last_error is 'why the last attempt to deliver it failed';

-- Where the follower is; one row.
create table wed_sql.follower (
    singleton         boolean not null default true,
    slot_name         text,
    epoch             bigint not null default 0,
    applied_lsn       pg_lsn,
    system_identifier bigint,
    constraint follower_pkey primary key (singleton),
    constraint follower_singleton check (singleton)
) with (fillfactor = 10);
insert into wed_sql.follower default values;

comment on table wed_sql.follower is 'position of the follower of this database (one row)';
comment on column wed_sql.follower.epoch is 'raised by each follower that starts, so that a batch of an older one cannot be committed after it';
comment on column wed_sql.follower.applied_lsn is 'everything committed up to here is in job_pool and wed_trace';

-- A flow that was made here is in the publication from its first state on. One that comes by other means (a restored
-- backup), and every flow when the slot is new, has states that no stream will bring. Not dumped: true of a slot only.
create table wed_sql.followed (
    flow_id integer not null,
    since   pg_lsn,
    error   text,
    whole   boolean not null default true,
    constraint followed_pkey primary key (flow_id)
);

comment on table wed_sql.followed is 'flows that are followed by the stream; the others are healed from their tables first';
comment on column wed_sql.followed.since is 'states committed before may be in wed_trace already; null: the flow is not followed';
comment on column wed_sql.followed.error is 'why the flow is not followed';
comment on column wed_sql.followed.whole is 'the flow has been followed once: its tables are complete, and have to stay so';

select pg_catalog.pg_extension_config_dump('wed_sql.tgid_seq', '');
select pg_catalog.pg_extension_config_dump('wed_sql.flow', '');
select pg_catalog.pg_extension_config_dump('wed_sql.flow_flow_id_seq', '');
select pg_catalog.pg_extension_config_dump('wed_sql.rule', '');
select pg_catalog.pg_extension_config_dump('wed_sql.timer', '');
select pg_catalog.pg_extension_config_dump('wed_sql.signal', 'where exists (select from pg_catalog.pg_roles r where r.oid = role)');
select pg_catalog.pg_extension_config_dump('wed_sql.signal_signal_id_seq', '');

-- The stamp that the guard puts on each state; the follower reads nothing else.
create type wed_sql.stamp as (
    version    bigint,
    rules      bigint,
    written_by integer,
    pending    integer[],
    matched    integer[],
    final      boolean,
    error      text,
    trw        text,
    since      bigint[],
    withdrawn  integer[],
    status     "char",
    undo       integer[],
    run        bigint,
    fired_at   timestamp with time zone,
    began_at   timestamp with time zone,
    clocks     integer[]
);

-- no attribute can be mistaken for one
revoke all on type wed_sql.stamp from public;

comment on type wed_sql.stamp is 'what was found out about a WED-state when it was written: its number (0 for the initial one), the version of the rules in force, the WED-trigger whose transition wrote it, those pending before it (tgid), those whose condition it satisfies, whether it is final, the error of a condition that failed, the name of the transition that wrote it, the states that fired those which pend on (in their order), those that it withdraws, S or C if it is suspended or cancelled, the transitions that a compensation has yet to undo, the number of states since the last intervention, when the job that it completes was fired, when its transaction began, and those of the WED-triggers that pend on or were fired whose delay has begun, as far as it is not known to be over (if it is suspended: those whose delay was not over)';

-- create_flow adds tables to it; it is made here so that the follower can start before that.
create publication wed_sql for table wed_sql.timer with (publish = 'insert, update');

create function wed_sql.adopt_publication(name text) returns void
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_adopt_publication';

revoke all on function wed_sql.adopt_publication(text) from public;

comment on function wed_sql.adopt_publication(text) is
'Makes a publication a member of the extension, if it is not; pg_upgrade loses that.';

select wed_sql.adopt_publication('wed_sql');
