-- Rules with a delay: the condition must hold for so long without a break.
create extension if not exists wed_sql;
select wed_sql.create_flow('ballots');
set search_path = ballots, wed_sql;
insert into wed_attr (aname, adv) values ('vote', null), ('note', null);
-- long enough not to be over by itself while the test runs
insert into wed_trig (tgname, trname, cpred, delay, action) values
    ('no vote', 'abstain', 'vote is null and note is null', '7 days', $$vote = 'abstained'$$);
insert into wed_trig (tgname, trname, cpred) values ('to be voted on', 'cast_vote', 'vote is null');
insert into wed_trig (tgname, trname, cpred, delay) values ('nobody reads it', 'remind', 'note is null', '3 days');
insert into wed_trig (cpred, cfinal) values ('vote is not null', true);

-- A clock that runs is no job, and is not in trf.
insert into wed_flow default values;
select sync();
select trname from job_pool;
select kind, version, date_trunc('day', due_at - now() + interval '1 minute') as due_in from wed_sql.timer order by due_at;
select version, trf, status, cardinality(pending) as pending from wed_trace;
