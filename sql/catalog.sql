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
    constraint flow_pkey primary key (flow_id),
    constraint flow_wed_flow_key unique (wed_flow),
    constraint flow_wed_attr_key unique (wed_attr),
    constraint flow_wed_trig_key unique (wed_trig),
    constraint flow_excpt_tgid_key unique (excpt_tgid)
);

comment on table wed_sql.flow is 'WED-flows of this database; the name of a flow is that of its schema';
comment on column wed_sql.flow.excpt_tgid is 'tgid of the jobs of transition _EXCPT of this flow';
comment on column wed_sql.flow.rules_version is 'number of the definition in force: each change of attributes or rules makes a new one';

-- What is kept about a flow besides has no foreign keys, as a parallel pg_restore loads the tables in any order.
create function wed_sql.flow_deleted() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    delete from wed_sql.rule where flow_id = old.flow_id;
    delete from wed_sql.worker where flow_id = old.flow_id;
    delete from wed_sql.followed where flow_id = old.flow_id;
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
    constraint rule_pkey primary key (tgid, valid_from)
);
create index rule_in_force on wed_sql.rule (flow_id, valid_until);

comment on table wed_sql.rule is 'versions of the WED-triggers: version v of a definition consists of those with valid_from <= v < valid_until';
comment on column wed_sql.rule.valid_until is 'exclusive; the largest bigint while the version is in force';

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

-- The stamp that the guard puts on each state; the follower reads nothing else.
create type wed_sql.stamp as (
    version    bigint,
    rules      bigint,
    written_by integer,
    pending    integer[],
    matched    integer[],
    final      boolean,
    error      text,
    trw        text
);

-- no attribute can be mistaken for one
revoke all on type wed_sql.stamp from public;

comment on type wed_sql.stamp is 'what was found out about a WED-state when it was written: its number (0 for the initial one), the version of the rules in force, the WED-trigger whose transition wrote it, those pending before it (tgid), those whose condition it satisfies, whether it is final, the error of a condition that failed, and the name of the transition that wrote it';

-- create_flow adds tables to it; it is made here so that the follower can start before that.
create publication wed_sql with (publish = 'insert, update');

create function wed_sql.adopt_publication(name text) returns void
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_adopt_publication';

revoke all on function wed_sql.adopt_publication(text) from public;

comment on function wed_sql.adopt_publication(text) is
'Makes a publication a member of the extension, if it is not; pg_upgrade loses that.';

select wed_sql.adopt_publication('wed_sql');
