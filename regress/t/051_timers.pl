# Timers: each fires in its time, once, whatever becomes of the engine. WED_SQL_TIMERS and WED_SQL_TIMER_SECONDS make
# it a longer run than that of make check.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WedSql;

my $timers = $ENV{WED_SQL_TIMERS} // 4000;
my $seconds = $ENV{WED_SQL_TIMER_SECONDS} // 8;
my $kill_every = $seconds >= 60 ? 10 : 2;
# to set them all takes its time, too
my $head = 3 + int($timers / 5000);

my $node = new_server('timers');
watch_machine();
$node->start;
$node->safe_psql('postgres', <<'SQL');
create extension wed_sql;
select wed_sql.create_flow('wait');
insert into wait.wed_attr (aname, atype) values ('done', 'boolean');
insert into wait.wed_trig (trname, cpred, delay) values ('wake', 'done is null', '1 hour');
insert into wait.wed_trig (trname, cpred, delay, action) values ('act', 'not done', '1 hour', 'done = true');
insert into wait.wed_trig (cpred, cfinal) values ('done', true);
SQL
wait_for_engine($node);

# All set, and moved to where they fall due: as many in each second.
$node->safe_psql('postgres', <<SQL);
insert into wait.wed_flow (done) select null from generate_series(1, $timers);
select wed_sql.sync('5 min');
SQL
is($node->safe_psql('postgres', 'select count(*) from wed_sql.timer'), $timers, "$timers timers are set");
$node->safe_psql('postgres', <<SQL);
create table due as select wid, now() + interval '$head s' + (random() * $seconds) * interval '1 s' as at from wait.wed_flow;
update wed_sql.timer t set due_at = d.at from due d where d.wid = t.wid;
SQL

# The engine is killed again and again while they fall due.
my ($kills, $begin, $absent) = (0, time, 0);
my $last = wait_for_engine($node);
while (time < $begin + $head + $seconds || $kills < 3)
{
	select(undef, undef, undef, 0.05);
	next if time < $begin + ($kills + 1) * $kill_every;
	kill 'KILL', $last;
	$kills++;
	my $killed = time;
	$last = wait_for_engine($node, $last);
	$absent = time - $killed if $absent < time - $killed;
}
$node->poll_query_until('postgres', "select count(*) = $timers from wait.job_pool")
  or die 'not all timers have fired';
cmp_ok($kills, '>=', 3, "the engine was killed $kills times");

is($node->safe_psql('postgres', 'select count(*) from wed_sql.timer'), 0, 'no timer is left');
is($node->safe_psql('postgres', q{select count(*), count(distinct wid) from wait.wed_event where event = 'timer fired'}),
	"$timers|$timers", 'each has fired, and none twice');
is($node->safe_psql('postgres', 'select count(*) from wait.wed_event e join due using (wid) where e.at < due.at'),
	0, 'none has fired early');
my $latest = $node->safe_psql('postgres',
	q{select round(max(extract(epoch from e.at - due.at))::numeric, 3) from wait.wed_event e join due using (wid)});
note("the latest was $latest s late; the longest time without an engine was $absent s");
# with no engine, none fires
cmp_ok($latest, '<', patience(1 + 2 * $absent), 'and none late by more than a second, beside the time without an engine');
is($node->safe_psql('postgres', 'select count(*) from wait.job_pool j join due using (wid) where j.fired_at = due.at'),
	$timers, 'a job is as old as it would be, had the engine lived');

# Restarting the server loses none, and those that fell due meanwhile are made up for.
$node->safe_psql('postgres', <<'SQL');
insert into wait.wed_flow (done) select false from generate_series(1, 50);
select wed_sql.sync();
update wed_sql.timer set due_at = now() + interval '200 ms' where kind = 'a';
SQL
$node->stop('immediate');
$node->start;
ok( $node->poll_query_until('postgres', q{select count(*) = 50 from wait.wed_instance where status = 'F'}),
	'actions that were due while the server was down are done');
is($node->safe_psql('postgres', q{select wed_sql.sync('10 min'); select count(*), count(distinct wid) from wait.wed_trace where trw = 'act'}),
	"\n50|50", '... once each');
is($node->safe_psql('postgres', q{select count(*) from wait.job_pool where trname = 'act'}), 0, '... and nothing of them is left');

# A clock that steps back or forth moves no more than the time: what is due is what the table says.
$node->safe_psql('postgres', <<'SQL');
insert into wait.wed_flow (done) select false from generate_series(1, 3);
select wed_sql.sync();
SQL
is($node->safe_psql('postgres', q{select count(*) from wed_sql.timer where due_at > now() + interval '59 min'}), 3, 'others wait for their time');

stop_clean($node);
done_testing();
