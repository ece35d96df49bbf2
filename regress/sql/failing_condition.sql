-- C9: a WED-condition that fails on a state makes an exception of that instance, and of no other.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('f');
set search_path = f, wed_sql;
begin;
insert into wed_attr (aname, adv) values ('a', '0'), ('stage', 'new');
insert into wed_trig (trname, cpred) values ('big', 'a::int > 9'), ('work', $$stage = 'new'$$);
insert into wed_trig (cpred, cfinal) values ($$stage = 'done' and 1 / (a::int - 7) is not null$$, true);
commit;

-- in the first state
insert into wed_flow (a) values ('x'), ('10'), ('7');
select wid, trname, payload from pg_temp.jobs();
select wid, version, status, pending, error from wed_instance order by wid;
select pg_temp.perform(1, '_EXCPT', 'a = 1');
select pg_temp.perform(1, 'work', $$stage = 'done'$$);

-- in a later one, with others pending
select pg_temp.perform(2, 'big', $$a = 'many'$$);
select wid, trname from pg_temp.jobs() where wid = 2;
-- both what pended and the exception have to be done
select pg_temp.perform(2, '_EXCPT', 'a = 2');
select pg_temp.perform(2, 'work', $$stage = 'done'$$);

-- in the final condition
select pg_temp.perform(3, 'work', $$stage = 'done'$$);
select pg_temp.perform(3, '_EXCPT', $$a = 8$$);
select wid, version, state, trw, trf, status, pending, error from pg_temp.trace();
select * from pg_temp.jobs();

-- functions that are not there any more, raise, or take too long
create function public.picky(a text) returns boolean language plpgsql as $$
begin
    if a = 'slow' then
        perform pg_sleep(60);
    elsif a = 'bad' then
        raise exception 'no, not %', a using errcode = 'P0042';
    end if;
    return true;
end $$;
insert into wed_trig (trname, cpred) values ('picky', 'public.picky(stage)');
insert into wed_flow (stage) values ('good');
insert into wed_flow (stage) values ('bad');
insert into wed_flow (stage) values ('slow');
drop function public.picky;
insert into wed_flow (stage) values ('gone');
select wid, state, trf, status, error from pg_temp.trace() where wid > 3;

-- the transaction that wrote it does not notice
begin;
insert into wed_flow (stage) values ('gone') returning wid;
select 1 as one;
commit;
select wid, status from pg_temp.trace() where wid > 7;
