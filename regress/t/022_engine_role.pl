# The engine does its work as a role that can log in and replicate and has what grant_engine gives it: it heals, and
# Figure 2 runs to the end. What that role may call gives it no command of its own under anybody else's name.
use strict;
use warnings;

use HTTP::Tiny;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('role');
$node->start;
create_figure2($node);
wait_for_engine($node);
engine_off($node);

# a flow of an ordinary owner, with instances from before
$node->safe_psql('postgres', <<'SQL');
create role wed_engine login replication;
create role owner login;
grant create on database postgres to owner;
grant execute on function wed_sql.create_flow(text) to owner;
SQL
$node->safe_psql('postgres', "insert into travel.wed_flow default values; select pg_drop_replication_slot(slot_name) from pg_replication_slots");

# whoever may not even log in, or replicate, is told so
my ($ret, $out, $err) = $node->psql('postgres', "create role weak; select wed_sql.grant_engine('weak')");
like($err, qr/role "weak" cannot run the engine.*HINT:  ALTER ROLE weak LOGIN REPLICATION/s, 'a role that cannot replicate is refused');
($ret, $out, $err) = $node->psql('postgres', "set role owner; select wed_sql.grant_engine('owner')");
like($err, qr/permission denied for function grant_engine/, 'only superusers make it the engine\'s');

$node->safe_psql('postgres', "select wed_sql.grant_engine('wed_engine')");
is($node->safe_psql('postgres', 'table wed_sql.engine_role'), 'wed_engine', 'wed_sql.engine_role shows it');
my $conninfo = "user=wed_engine";
$node->append_conf('postgresql.conf', "wed_sql.conninfo = '$conninfo'");
engine_on($node);
wait_for_engine($node);
is($node->safe_psql('postgres', "select count(*) >= 2, bool_and(usename = 'wed_engine') from pg_stat_activity where application_name = 'wed_sql engine' and datname = 'postgres'"),
	't|t', 'the engine runs as the role');
is(jobs($node), "1 tr_a2\n1 tr_a3", '... it heals');
perform($node, 1, 'tr_a2', "a2 = 'x'");
perform($node, 1, 'tr_a3', "a3 = 'x'");
perform($node, 1, 'tr_final', "a1 = 'done'");
is(trace($node, 1), figure2_trace('tr_a2', 'tr_a3'), '... and Figure 2 runs to the end');
ok($node->poll_query_until('postgres', "select finals = 1 from wed_sql.stat_flow where flow = 'travel'"), '... it counts');
my $port = PostgreSQL::Test::Cluster::get_free_port();
$node->safe_psql('postgres', "alter system set wed_sql.metrics_address = ':$port'");
$node->reload;
my $metrics = '';
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	$metrics = HTTP::Tiny->new->get("http://127.0.0.1:$port/metrics")->{content};
	last if $metrics =~ /^wed_sql_statistics_up\{database="postgres"\} 1$/m;
	select(undef, undef, undef, 0.1);
}
like($metrics, qr/^wed_sql_statistics_up\{database="postgres"\} 1$/m, '... and may look up what the metrics need');

# a flow made later, and by somebody else; a value that is not in the log and not in the history
$node->safe_psql('postgres', "set role owner; select wed_sql.create_flow('later'); set search_path = later;
	insert into wed_attr (aname, adv) values ('a', '1'); insert into wed_attr (aname) values ('doc');
	insert into wed_trig (trname, cpred) values ('go', 'a = ''1'''); insert into wed_flow (doc) select string_agg(md5(i::text), '') from generate_series(1, 2000) i");
is($node->safe_psql('postgres', 'select wed_sql.sync() \g /dev/null
	select count(*) from later.job_pool'), '1', 'a flow that is made later is covered');
$node->safe_psql('postgres', 'delete from later.wed_trace');
$node->safe_psql('postgres', "begin; select wed_sql.try_lock(wid, tgid) from later.job_pool; update later.wed_flow set a = '1'; commit");
is($node->safe_psql('postgres', "select wed_sql.sync() \\g /dev/null
	select length(state ->> 'doc') from later.wed_trace where version = 1"), '64000', '... and read as its owner');
$node->safe_psql('postgres', "select wed_sql.grant_worker('later', 'go', 'owner')");
perform_later();
is($node->safe_psql('postgres', "select wed_sql.sync() \\g /dev/null
	select count(*) from later.wed_trace"), '2', '... also under row security');
sub perform_later
{
	$node->safe_psql('postgres', "begin; select wed_sql.try_lock(wid, tgid) from later.job_pool; update later.wed_flow set doc = 'x'; commit");
}
is($node->safe_psql('postgres', 'select count(*) from later.job_pool'), '1', '... with its job');

# what the role must not be able to do
sub refused
{
	my ($sql, $error, $what) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', $sql, extra_params => [ '-U', 'wed_engine' ]);
	like($err, $error, $what);
}
refused("select wed_sql.execute_as_owner('later.wed_flow', 'drop table later.wed_flow')", qr/permission denied for function execute_as_owner/, 'no command as an owner');
refused("select * from wed_sql.instance_texts('later.wed_flow', '{1}', 1000)", qr/permission denied for function instance_texts/, 'no table read but by the functions that look at it first');
refused('select * from later.wed_flow', qr/permission denied for table wed_flow/, 'no reading of a flow\'s table by itself');
refused("update later.wed_flow set a = '2'", qr/permission denied for table wed_flow/, '... nor writing');
refused("delete from later.wed_trace", qr/permission denied for table wed_trace/, 'no rewriting of history');
refused("update later.wed_trace set state = '{}'", qr/permission denied for table wed_trace/, '... none at all');
refused("update wed_sql.flow set wed_flow = 'pg_authid'", qr/permission denied for table flow/, 'no flow is made of another table');
refused("insert into wed_sql.flow (wed_flow, wed_attr, wed_trig, job_pool, wed_trace) values ('pg_authid', 1, 1, 1, 1)", qr/permission denied for table flow/, '... nor a new one');
refused("select wed_sql.grant_engine('owner')", qr/permission denied for function grant_engine/, 'no role is made the engine\'s');
refused("select * from wed_sql.states(99, '{1}', 1000)", qr/there is no WED-flow of number 99/, 'a flow that is not there is not read');
refused("select * from wed_sql.current_value(2, 1, 'rolpassword from pg_authid --')", qr/^$/, 'a name of an attribute is a name');
refused("select * from wed_sql.current_value(2, 1, 'oid')", qr/^$/, '... of an attribute');
# tables and functions of its own in its own session do not get in the way of those that are called
refused(q{create function pg_temp.format(text, variadic text[]) returns text language sql as 'select 1/0; select null::text';
	create temporary table pg_publication (pubname name, oid oid); create temporary table wed_flow (wid bigint);
	select count(*) from wed_sql.unhealed(); select looked from wed_sql.unseen(2, -1, 10); select wid from wed_sql.states(2, '{1}', 1000)},
	qr/^$/, 'what the role has in its session is not looked at');

# code that an owner has put into his table runs as him
$node->safe_psql('postgres', <<'SQL');
set role owner;
create function later.noisy(i int) returns int language plpgsql immutable as $$
begin
	if current_user <> 'owner' then raise exception 'runs as %', current_user; end if;
	return i;
end $$;
create index on later.wed_flow (later.noisy(1), a);
reset role;
alter event trigger wed_sql_published disable;
delete from later.wed_trace;
update wed_sql.followed set since = null;
select wed_sql.discover();
SQL
wait_until_followed($node);
is($node->safe_psql('postgres', 'select count(*) from later.wed_trace'), '1', 'an owner\'s code runs as the owner');
unlike(slurp_file($node->logfile), qr/runs as/, '... and as nobody else');

# taken back
$node->safe_psql('postgres', "select wed_sql.revoke_engine('wed_engine')");
is($node->safe_psql('postgres', 'table wed_sql.engine_role'), '', 'it can be taken back');
$node->safe_psql('postgres', "insert into travel.wed_flow default values");
$node->poll_query_until('postgres', "select last_error like '%permission denied%' from wed_sql.status where datname = 'postgres'") or die;
pass('... the engine says that it may no more');
$node->safe_psql('postgres', "drop policy if exists none on later.job_pool; drop role wed_engine") if 0;
$node->safe_psql('postgres', "select wed_sql.grant_engine('wed_engine')");
is(jobs($node), "2 tr_a2\n2 tr_a3", '... and goes on when it may');

$node->stop;
done_testing();
