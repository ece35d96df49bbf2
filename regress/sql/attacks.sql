-- No way up: what a flow's owner writes into conditions runs with his rights, restricted, and stops nobody else,
-- also when a superuser writes the state.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
set client_min_messages = error;
drop role if exists wed_sql_mallory;
drop schema if exists mal cascade;
reset client_min_messages;
create role wed_sql_mallory;
do $$ begin execute format('grant create on database %I to wed_sql_mallory', current_database()); end $$;
grant execute on function wed_sql.create_flow(text), wed_sql.drop_flow(text) to wed_sql_mallory;
create table public.loot (what text);
insert into public.loot values ('gold');

set role wed_sql_mallory;
create schema mal;
create table mal.log (what text);
create table mal.deferred (i integer, constraint u unique (i) deferrable initially deferred);
create function mal.evil_trigger() returns trigger language plpgsql as $$
begin insert into mal.log select what from public.loot; return null; end $$;
create constraint trigger later after insert on mal.log deferrable initially deferred
    for each row execute function mal.evil_trigger();
create function mal.run(command text) returns boolean language plpgsql as $$ begin execute command; return true; end $$;
create function mal.recurse(i integer) returns integer language plpgsql as $$ begin return mal.recurse(i + 1); end $$;
create function mal.raise(code text) returns boolean language plpgsql as $$
begin raise exception 'made up' using errcode = code; end $$;
create function mal.harmless() returns boolean language sql stable as 'select true';

select wed_sql.create_flow('trap');
set search_path = trap, wed_sql;
insert into wed_attr (aname, atype) values ('n', 'integer');
-- one attack each; rule 0 tells that a state arrived
insert into wed_trig (tgname, trname, cpred) values ('plain', 'plain', 'n >= 0');
insert into wed_trig (tgname, trname, cpred)
select 'a' || i, 'a' || i, format('n = %s and %s', i, attack)
  from unnest(array[
    /*  1 */ $$mal.run('set role postgres')$$,
    /*  2 */ $$set_config('role', 'none', false) is not null$$,
    /*  3 */ $$mal.run('set session authorization default')$$,
    /*  4 */ $$set_config('session_authorization', 'wed_sql_mallory', false) is not null$$,
    /*  5 */ $$mal.run('alter role wed_sql_mallory superuser')$$,
    /*  6 */ $$mal.run('insert into mal.log values (1)')$$,
    /*  7 */ $$mal.run('create temporary table t (i integer)')$$,
    /*  8 */ $$mal.run('listen a1')$$,
    /*  9 */ $$mal.run('declare c cursor with hold for select 1')$$,
    /* 10 */ $$mal.run('prepare p as select 1')$$,
    /* 11 */ $$mal.run('select what from public.loot')$$,
    /* 12 */ $$mal.run('select wed_sql.drop_flow(''trap'')')$$,
    /* 13 */ $$mal.run('update wed_sql.follower set epoch = 0')$$,
    /* 14 */ $$mal.run('delete from trap.job_pool')$$,
    /* 15 */ $$mal.run('set session_replication_role = replica')$$,
    /* 16 */ $$mal.run('copy (select 1) to program ''true''')$$,
    /* 17 */ $$mal.run('select pg_read_file(''postgresql.conf'')')$$,
    /* 18 */ $$mal.run('select lo_import(''/etc/passwd'')')$$,
    /* 19 */ $$mal.recurse(0) > 0$$,
    /* 20 */ $$length(repeat('x', n * 100000000)) > 0$$,
    /* 21 */ $$mal.run('insert into trap.wed_flow (n) values (21)')$$,
    /* 22 */ $$mal.raise('57014')$$,
    /* 23 */ $$mal.raise('40001')$$,
    /* 24 */ $$mal.run('commit')$$,
    /* 25 */ $$pg_sleep(1000000) is not null$$,
    /* 26 */ $$mal.run('alter table trap.wed_flow disable trigger all')$$,
    /* 27 */ $$mal.run('load ''plpgsql''')$$,
    /* 28 */ $$n / 0 = 1$$,
    /* 29 */ $$mal.run('select wed_sql.execute_as_owner(''pg_class'', ''select 1'')')$$,
    /* 30 */ $$mal.run('select pg_advisory_lock(3, 3)')$$,
    /* 31 */ $$mal.run('select pg_advisory_unlock_all()')$$,
    /* 32 */ $$wed_sql.try_lock(1, 1)$$,
    /* 33 */ $$mal.run('set constraints all immediate')$$,
    /* 34 */ $$mal.run('deallocate all')$$,
    /* 35 */ $$mal.run('move next in superusers_cursor')$$
  ]) with ordinality a(attack, i);
reset role;
select rolsuper from pg_roles where rolname = 'wed_sql_mallory';
set client_min_messages = error;
set max_stack_depth = '500kB'; -- so that 21 comes to its end in time
insert into wed_flow (n) select generate_series(0, 35);
reset max_stack_depth;
reset client_min_messages;
-- each is an exception of its own instance, and tells why
select (state ->> 'n')::int as n, status, trf, substring(error from 'SQLSTATE (.....)') as code,
       substring(error from 'took longer than \S+') as limit
  from pg_temp.trace() where state ->> 'n' <> '21' order by 1;
-- (21 starts instances that start instances, until the stack is full)
select count(*) > 10 as many, count(*) filter (where status = 'E') as at_the_end from wed_trace where state ->> 'n' = '21';
-- nobody has gained anything
select rolsuper from pg_roles where rolname = 'wed_sql_mallory';
select session_user = current_user as same, current_setting('session_replication_role');
table public.loot;
select count(*) from mal.log;
select nspname from pg_namespace where nspname = 'trap';
select tgenabled from pg_trigger where tgrelid = 'wed_flow'::regclass and tgname = 'zz_guard';

-- what was harmless when the rule was accepted
set role wed_sql_mallory;
insert into wed_trig (tgname, trname, cpred) values ('turns', 'turns', 'n = 40 and mal.harmless()');
reset role;
insert into wed_flow (n) values (40);
set role wed_sql_mallory;
create or replace function mal.harmless() returns boolean language plpgsql as $$
begin alter role wed_sql_mallory superuser; return true; end $$;
reset role;
insert into wed_flow (n) values (40);
select trf, status, substring(error from 'SQLSTATE (.....)') as code from pg_temp.trace() where state ->> 'n' = '40';
-- and one that calls itself leakproof, or is an operator, a cast or a type of his
set role wed_sql_mallory;
select * from pg_temp.refused('alter function mal.harmless() leakproof') \gx
create function mal.eq(integer, integer) returns boolean language plpgsql as $$ begin alter role wed_sql_mallory superuser; return true; end $$;
create operator mal.= (leftarg = integer, rightarg = integer, function = mal.eq);
create type mal.mood as enum ('fine');
create function mal.to_mood(integer) returns mal.mood language plpgsql as $$ begin alter role wed_sql_mallory superuser; return 'fine'; end $$;
create cast (integer as mal.mood) with function mal.to_mood(integer) as implicit;
create domain mal.small as integer check (mal.eq(value, 1));
insert into wed_trig (tgname, trname, cpred) values
    ('operator', 'operator', 'n = 50 and n operator(mal.=) 50'), ('cast', 'cast', $$n = 51 and n::mal.mood = 'fine'$$),
    ('domain', 'domain', 'n = 52 and n::mal.small is not null');
set search_path = mal, trap, wed_sql;
insert into wed_trig (tgname, trname, cpred) values ('path', 'path', 'n = 53');
set search_path = trap, wed_sql;
reset role;
insert into wed_flow (n) values (50), (51), (52), (53);
select (state ->> 'n')::int as n, trf, status, substring(error from 'SQLSTATE (.....)') as code
  from pg_temp.trace() where (state ->> 'n')::int between 50 and 59 order by 1;
-- domains with collations that do not fit together: that fails, and is found out before
set role wed_sql_mallory;
create domain mal.c as text collate "C";
create domain mal.p as text collate "POSIX";
insert into wed_attr (aname, atype) values ('c', 'mal.c'), ('p', 'mal.p');
insert into wed_trig (tgname, trname, cpred) values ('collation', 'collation', 'n = 54 and c < p');
reset role;
insert into wed_flow (n, c, p) values (54, 'a', 'b');
select status, trf, substring(error from 'SQLSTATE (.....)') as code from pg_temp.trace() where state ->> 'n' = '54';
delete from wed_trig where tgname = 'collation';
select * from pg_temp.refused($$create type pg_temp.fleeting as enum ('x'); insert into trap.wed_attr (aname, atype) values ('f', 'pg_temp.fleeting')$$) \gx
select * from pg_temp.refused($$insert into trap.wed_attr (aname, atype) values ('s', 'wed_sql.stamp')$$) \gx
-- a domain of his as an attribute, with a default and rows to check: added as the owner
\set VERBOSITY sqlstate
insert into wed_attr (aname, adv, atype) values ('d', '1', 'mal.small');
\set VERBOSITY default
select rolsuper from pg_roles where rolname = 'wed_sql_mallory';

-- names: quotes, 63 bytes, 64 bytes, marks that turn the text around, and no bytes at all
set role wed_sql_mallory;
insert into wed_attr (aname) values ('"; drop table public.loot; --'), (repeat('n', 63)), (E'abc\u202Ecba');
select * from pg_temp.refused($$insert into trap.wed_attr (aname) values (repeat('n', 64))$$) \gx
select * from pg_temp.refused($$insert into trap.wed_attr (aname) values ('')$$) \gx
insert into wed_trig (trname, cpred) values ($q$'; drop table public.loot; --$q$, 'n = 60'), (repeat('é', 31), 'n = 60');
select * from pg_temp.refused($$insert into trap.wed_trig (trname, cpred) values (repeat('é', 32), 'n = 60')$$) \gx
-- conditions: whatever would end the expression, or the statement around it
create function pg_temp.tried(cpred text) returns text language plpgsql as $$
begin
    insert into trap.wed_trig (trname, cpred) values ('t', cpred);
    return 'accepted';
exception when others then
    return sqlstate || ' ' || sqlerrm;
end
$$;
select cpred, pg_temp.tried(cpred) from unnest(array[
    'true); drop table public.loot; --', 'true; drop table public.loot', 'wid is null --', 'wid is null /* and */', 'true /*', '(true', 'true)',
    'n = 1 union select true', 'n in (select 1) or true from public.loot', '$$', '''', 'n = $1', ':n', '', ' ', 'true as x', '*', 'wed_flow.*',
    'n = 1 into x', 'exists (insert into public.loot values (1) returning true)', 'count(*) > 0', 'generate_series(1, 9) > 1', 'row_number() over () = 1',
    'n', 'null', 'wid is null and current_user = ''x'''
]) cpred;
reset role;
insert into wed_flow (n) values (60);
select trf from pg_temp.trace() where state ->> 'n' = '60';
table public.loot;

-- an index of his, which the planner evaluates for whoever reads the table: not for the follower
set role wed_sql_mallory;
create function mal.always() returns boolean language sql immutable as 'select true';
create index lure on wed_flow (n) where mal.always();
create or replace function mal.always() returns boolean language plpgsql immutable as $$
begin raise exception 'run as %', current_user; end $$;
reset role;
do $$ begin perform count(*) from trap.wed_flow where n > 0; exception when others then raise notice '%', sqlerrm; end $$;
select count(*) > 0 as read from wed_sql.states((select flow_id from wed_sql.flow where wed_flow = 'trap.wed_flow'::regclass),
    array(select distinct wid from trap.wed_trace), 1000000);
set role wed_sql_mallory;
drop index lure;
reset role;

select wed_sql.drop_flow('trap');
drop table public.loot;
set client_min_messages = error;
drop owned by wed_sql_mallory cascade;
drop role wed_sql_mallory;
