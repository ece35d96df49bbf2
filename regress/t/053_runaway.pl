# Code of a flow's owner that does not end, though it is cancelled, ends with the session that runs it: other flows'
# timers are done, and the database can be dropped.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('runaway');
$node->append_conf('postgresql.conf', "wed_sql.action_timeout = '300ms'");
$node->start;
$node->safe_psql('postgres', 'create database stuck');
$node->safe_psql('stuck', <<'SQL');
create extension wed_sql;
select wed_sql.create_flow('runaway');
insert into runaway.wed_attr (aname, atype) values ('x', 'integer');
create function runaway.stay() returns trigger language plpgsql as $$
begin
    loop
        begin
            perform pg_sleep(1000);
        exception when query_canceled then
            null;
        end;
    end loop;
end $$;
insert into runaway.wed_trig (trname, cpred) values ('work', 'x = 1');
insert into runaway.wed_trig (trname, cpred, action) values ('act', 'x = 2', 'x = 3');
insert into runaway.wed_trig (cpred, cfinal) values ('x = 3', true);
insert into runaway.wed_flow (x) values (1);
select wed_sql.create_flow('honest');
insert into honest.wed_attr (aname, atype) values ('x', 'integer');
insert into honest.wed_trig (trname, cpred, delay) values ('later', 'x = 1', '1 hour');
insert into honest.wed_trig (trname, cpred, delay, action) values ('act', 'x = 2', '1 hour', 'x = 3');
insert into honest.wed_trig (cpred, cfinal) values ('x = 3', true);
insert into honest.wed_flow (x) values (1), (2);
select wed_sql.sync();
select wed_sql.suspend('runaway', 1, now() + interval '1 second');
create trigger stay before update on runaway.wed_flow for each row execute function runaway.stay();
insert into runaway.wed_flow (x) values (2);
SQL
my $mark = -s $node->logfile;

# an intervention of its owner has its time, too
my ($status, undef, $error) = $node->psql('stuck', q{select wed_sql.cancel('runaway', 1)});
isnt($status, 0, 'an intervention that does not end fails');
like($error, qr/terminating connection|took longer than wed_sql.action_timeout/, '... and says why');

# the suspension ends and the action is due: both would stay for ever
$node->safe_psql('stuck', q{update wed_sql.timer set due_at = clock_timestamp() + interval '2 s' where flow_id = 2});
ok($node->poll_query_until('stuck', q{select exists (select from honest.job_pool where trname = 'later')}),
	'a delay of another flow fires');
ok($node->poll_query_until('stuck', q{select exists (select from honest.wed_instance where wid = 2 and status = 'F')}),
	'an action of another flow is done');
$node->wait_for_log(qr/the session was terminated because a condition or an action of WED-flow "runaway" does not end/, $mark);
pass('the log says who it was');

# the sessions of the sweeper have ended, or will: nothing is in the way
# (what has ended a session is tried again a minute later)
$node->safe_psql('stuck', q{alter table runaway.wed_flow disable trigger stay; update wed_sql.timer set due_at = clock_timestamp()});
ok($node->poll_query_until('stuck', q{select bool_and(status in ('R', 'F')) from runaway.wed_instance}),
	'it goes on when it is mended');
is($node->safe_psql('postgres', 'drop database stuck; select 1'), 1, 'the database can be dropped');

stop_clean($node);
done_testing();
