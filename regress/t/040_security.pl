# What cannot be tried in one session: a condition that will not end, a stranger
# who takes locks, a schema that somebody has prepared, and worker roles that
# log in as such.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('security');
$node->append_conf('postgresql.conf', "log_lock_waits = off");
$node->start;

# a schema that was there before the extension, and its owner's objects
$node->safe_psql('postgres', 'create role mallory login; grant create on database postgres to mallory; create role owner login');
$node->safe_psql('postgres', 'set role mallory; create schema wed_sql');
my ($ret, $out, $err) = $node->psql('postgres', 'create extension wed_sql');
like($err, qr/ERROR:  schema "wed_sql" belongs to role "mallory", who is no superuser/, 'the schema is a stranger\'s: CREATE EXTENSION is refused');
like($err, qr/HINT:  .*DROP SCHEMA wed_sql/, '... and says what to do');
$node->safe_psql('postgres', q{grant create on schema wed_sql to mallory; set role mallory;
create function wed_sql.current_setting(text) returns text language sql as 'select null::text'; reset role; alter schema wed_sql owner to current_user});
($ret, $out, $err) = $node->psql('postgres', 'create extension wed_sql');
like($err, qr/ERROR:  schema "wed_sql" is not empty: it has function wed_sql.current_setting\(text\)/, 'a stranger\'s function is in it: CREATE EXTENSION is refused');
$node->safe_psql('postgres', 'drop function wed_sql.current_setting(text)');
$node->safe_psql('postgres', 'grant create on schema wed_sql to mallory');
($ret, $out, $err) = $node->psql('postgres', 'create extension wed_sql');
like($err, qr/ERROR:  others than its owner may create objects in schema "wed_sql": mallory/, 'others may put objects into it: CREATE EXTENSION is refused');
$node->safe_psql('postgres', 'revoke create on schema wed_sql from mallory');
# what is first in the search_path of the one who installs is not looked at
$node->safe_psql('postgres', q{set role mallory; create schema trap;
create function trap.alter_me() returns boolean language plpgsql as $$ begin alter role mallory superuser; return true; end $$;
create function trap.format(text, text) returns text language sql as 'select trap.alter_me()::text';
create function trap.current_setting(text) returns text language sql as 'select trap.alter_me()::text';
create function trap.eq(name, text) returns boolean language sql as 'select trap.alter_me()';
create operator trap.= (leftarg = name, rightarg = text, function = trap.eq);
reset role; set search_path = trap, pg_catalog; create extension wed_sql});
is($node->safe_psql('postgres', q{select rolsuper from pg_roles where rolname = 'mallory'}), 'f', 'a search_path with traps gains nothing at install time');
create_figure2($node);
is($node->safe_psql('postgres', q{set search_path = trap, pg_catalog; insert into travel.wed_flow default values;
select wed_sql.create_flow('second'); insert into second.wed_attr values ('a'); select wed_sql.drop_flow('second');
select rolsuper from pg_roles where rolname = 'mallory'}), "\n\nf", '... nor afterwards');

# a condition that catches its cancellation ends with the session, not never
$node->safe_psql('postgres', "alter system set wed_sql.condition_timeout = '1s'");
$node->reload;
$node->safe_psql('postgres', q{grant create on database postgres to owner;
grant execute on function wed_sql.create_flow(text), wed_sql.grant_worker(text, text, name) to owner; set role owner; create schema o;
create function o.forever() returns boolean language plpgsql as $$
begin
    loop
        begin
            perform pg_sleep(1000);
        exception when query_canceled then null;
        end;
    end loop;
end $$;
select wed_sql.create_flow('runaway');
insert into runaway.wed_attr (aname) values ('a');
insert into runaway.wed_trig (trname, cpred) values ('go', $$a is null or o.forever()$$), ('other', 'a is null')});
$node->safe_psql('postgres', 'insert into runaway.wed_flow default values; select wed_sql.sync()');
my $go = $node->safe_psql('postgres', q{select tgid from runaway.job_pool where trname = 'go'});
my $log = -s $node->logfile;
($ret, $out, $err) = $node->psql('postgres', "begin; select wed_sql.try_lock(1, $go); update runaway.wed_flow set a = 'x'; commit");
like($err, qr/terminating connection/, 'a condition that does not end ends with its session');
$node->wait_for_log(qr/LOG:  the session was terminated because a condition or an action of WED-flow "runaway" does not end/, $log);
is($node->safe_psql('postgres', 'select wed_sql.sync() \g /dev/null
select string_agg(trname, \' \' order by tgid) from runaway.job_pool'), 'go other', '... the log says so, and the jobs are pending as before');
$node->safe_psql('postgres', 'alter system reset wed_sql.condition_timeout');
$node->reload;
perform($node, 1, 'tr_a2', "a2 = 'x'");
is(jobs($node), '1 tr_a3', '... and other flows go on');

# a stranger who holds the lock of a job: seen, named, and survived
my ($tgid) = $node->safe_psql('postgres', q{select tgid from travel.job_pool where wid = 1 and trname = 'tr_a3'});
my $second = $node->safe_psql('postgres', 'insert into travel.wed_flow default values returning wid');
my $stranger = $node->background_psql('postgres', extra_params => [ '-U', 'mallory' ]);
$stranger->query_safe("select pg_advisory_lock(1, $tgid)");
my $pid = $stranger->query_safe('select pg_backend_pid()');
is($node->safe_psql('postgres', "select wed_sql.try_lock(1, $tgid)"), 'f', 'a stranger keeps workers from one job');
is($node->safe_psql('postgres', 'select flow, wid, tgid, trname, pid, role, entitled from wed_sql.job_lock'),
	"travel|1|$tgid|tr_a3|$pid|mallory|f", '... wed_sql.job_lock names him');
like($node->safe_psql('postgres', q{select wed_sql.lock_warnings('0')}),
	qr/^session $pid of role "mallory" holds the lock of job "tr_a3" .*pg_terminate_backend\($pid\)/, '... and so does the warning of wed_sql.status');
perform($node, $second, 'tr_a3', "a3 = 'y'");
perform($node, $second, 'tr_a2', "a2 = 'y'");
is(jobs($node), "1 tr_a3\n2 tr_final", '... all other jobs go on');
# also when the owner of the flow would rather not: his conditions are not run for that
my $lure = $node->safe_psql('postgres', q{set role owner; select wed_sql.create_flow('lure');
insert into lure.wed_attr (aname) values ('a'); insert into lure.wed_trig (trname, cpred) values ('go', 'a is null') returning tgid});
$lure =~ s/\D//g;
$node->safe_psql('postgres', 'insert into lure.wed_flow default values; select wed_sql.sync()');
$node->safe_psql('postgres', q{set role owner; create function o.constant() returns boolean language sql immutable as 'select true';
insert into lure.wed_trig (trname, cpred) values ('stall', 'a is not null or o.constant()');
create or replace function o.constant() returns boolean language plpgsql immutable as $$ begin return o.forever(); end $$});
$stranger->query_safe("select pg_advisory_lock(1, $lure)");
is($node->safe_psql('postgres', q{select role, entitled from wed_sql.job_lock where flow = 'lure'}), 'mallory|f', '... in a flow whose conditions never end');
$node->safe_psql('postgres', "select pg_terminate_backend($pid)");
ok(wait_until_gone($pid), '... he is sent away');
$stranger->{run}->finish;
perform($node, 1, 'tr_a3', "a3 = 'x'");
perform($node, 1, 'tr_final', "a1 = 'done'");
is(trace($node, 1), figure2_trace('tr_a2', 'tr_a3'), '... and the job was not lost');
# one who has the lock by right is no stranger
my $worker = $node->background_psql('postgres');
$worker->query_safe("begin; select wed_sql.try_lock($second, (select tgid from travel.job_pool where wid = $second))");
is($node->safe_psql('postgres', 'select wid, entitled from wed_sql.job_lock'), "$second|t", 'a worker is none');
$worker->quit;

# worker roles, logged in as what they are
$node->safe_psql('postgres', q{create role booker login; select wed_sql.grant_worker('travel', 'tr_a2', 'booker')});
my $third = $node->safe_psql('postgres', 'insert into travel.wed_flow default values returning wid');
my %job = map { $_ => job_tgid($node, $third, $_) } qw(tr_a2 tr_a3);
my @as_booker = (extra_params => [ '-U', 'booker' ]);
is($node->safe_psql('postgres', 'select trname from travel.job_pool', @as_booker), 'tr_a2', 'a worker role sees its jobs');
($ret, $out, $err) = $node->psql('postgres', "begin; select wed_sql.try_lock($third, $job{tr_a3}); update travel.wed_flow set a3 = 'x' where wid = $third; commit", @as_booker);
like($err, qr/ERROR:  permission denied for jobs of tgid $job{tr_a3}/, '... and cannot take another\'s');
$node->safe_psql('postgres', "begin; select wed_sql.try_lock($third, $job{tr_a2}); update travel.wed_flow set a2 = 'x' where wid = $third; commit", @as_booker);
is(jobs($node), "2 tr_final\n$third tr_a3", '... but performs its own');
is($node->safe_psql('postgres', 'select current_user, (select rolsuper from pg_roles where rolname = current_user)', @as_booker), 'booker|f', '... and is who it was');

# whoever listens hears of its jobs, but not what is in them
my $listener = $node->background_psql('postgres', extra_params => [ '-U', 'mallory' ]);
$listener->query_safe('listen tr_a2');
my $heard;
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	# the engine looks for new grants by itself, once it was told that there are some
	$node->safe_psql('postgres', "insert into travel.wed_flow default values; select wed_sql.sync()");
	$heard = $listener->query_safe('select 1');
	last if $heard !~ /"payload":/;
}
like($heard, qr/"trname":"tr_a2","timeout":"[^"]*","payload_omitted":true/, 'notifications of a flow with worker roles have no state');
$listener->quit;

# a state that would be too large for those who follow it
($ret, $out, $err) = $node->psql('postgres', "set wed_sql.max_state_size = '1MB'; insert into travel.wed_flow (a1) select string_agg(md5(i::text), '') from generate_series(1, 40000) i");
like($err, qr/ERROR:  state of an instance of WED-flow "travel" is too large/, 'a state over wed_sql.max_state_size is refused');
like($err, qr/DETAIL:  Its attributes have 1250 kB, stored or as text; wed_sql.max_state_size is 1024 kB./, '... in numbers');
($ret, $out, $err) = $node->psql('postgres', "set wed_sql.max_state_size = '1GB'", @as_booker);
like($err, qr/permission denied to set parameter|invalid value|outside the valid range/, '... and not everybody sets it');

$node->stop;
done_testing();
