# A thousand jobs are leased for longer than anybody would keep a transaction open (shortened by the arguments of the
# leases). Half of the workers vanish. Everything is done exactly once, nobody's token is worth anything when its lease
# has ended, and no transaction is held open.
use strict;
use warnings;

use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('leases');
$node->append_conf('postgresql.conf', <<'CONF');
max_connections = 50
fsync = off
CONF
watch_machine();
$node->start;
$node->safe_psql('postgres', 'create extension wed_sql');
wait_for_engine($node);
$node->safe_psql('postgres', <<'SQL');
create role worker login;
select wed_sql.create_flow('f');
set search_path = f, wed_sql;
insert into wed_attr (aname, atype) values ('n', 'int');
insert into wed_trig (trname, cpred) values ('go', 'n is null');
insert into wed_trig (cpred, cfinal) values ('n is not null', true);
select wed_sql.grant_worker('f', 'go', 'worker');
create table f.done (wid bigint);
create table f.vanished (wid bigint, tgid int, lckid text);
grant insert on f.done, f.vanished to worker;
insert into wed_flow select from generate_series(1, 1000);
select wed_sql.sync();
SQL

sub pgbench
{
	my ($script, $out, @args) = @_;
	my ($file, $fh) = ($node->basedir . '/script' . int(rand(1e9)));
	open($fh, '>', $file) or die;
	print $fh $script;
	close($fh) or die;
	return IPC::Run::start([ 'pgbench', '-n', '-U', 'worker', '-f', $file, @args, $node->connstr('postgres') ],
		'>', $out, '2>&1', IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
}

sub value { return $node->safe_psql('postgres', shift); }

# Twenty-five workers take twenty each, and are never heard of again. They are in each other's way, and still nobody gets
# fewer than he asked for.
my ($vanishing_out, $honest_out);
my $vanishing = pgbench("insert into f.vanished select wid, tgid, lckid from wed_sql.lease('f', 'go', '30 seconds', 10);\n",
	\$vanishing_out, '-c', '25', '-t', '2');
ok($vanishing->finish, 'half of the jobs are leased') or BAIL_OUT($vanishing_out);
is(value('select count(*), count(distinct wid), count(distinct lckid) from f.vanished'), '500|500|500', 'each by one worker');
ok($node->poll_query_until('postgres', q{select count(*) = 0 from pg_stat_activity where usename = 'worker'}), 'the workers are gone');
is(value(q{select count(*) from pg_locks where locktype = 'advisory'}), '0', 'a lease is no lock');
is(value('select count(*) from f.job_pool where leased_until > clock_timestamp()'), '500', 'and it lasts');

# Ten others do their work, each in two short transactions, and a pause between them.
my $honest = pgbench(<<'SQL', \$honest_out, '-c', '10', '-T', '120');
select coalesce(max(wid), 0) as wid, coalesce(max(tgid), 0) as tgid, coalesce(max(lckid), '') as token from wed_sql.lease('f', 'go', '1 minute') \gset
\sleep 10 ms
\if :wid > 0
begin;
select wed_sql.complete('f', :wid, :tgid, ':token', '{"n": 1}'::jsonb);
insert into f.done values (:wid);
commit;
\endif
SQL
my $oldest = 0;
my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
while ($honest->pumpable && value('select count(*) from f.done') < 1000 && time < $deadline)
{
	my $age = value(q{select coalesce(max(extract(epoch from clock_timestamp() - xact_start) * 1000), 0)::int
		from pg_stat_activity where usename = 'worker'});
	$oldest = $age if $age > $oldest;
}
$honest->signal('TERM');
eval { $honest->finish };
is(value('select count(*), count(distinct wid) from f.done'), '1000|1000', 'everything is done, and once')
  or diag($honest_out);
cmp_ok($oldest, '<', patience(1) * 1000, "no transaction was open for longer than $oldest ms, while leases lasted 30 s");
is(value(q{select wed_sql.sync(); select count(*), count(distinct wid) from f.wed_trace where trw = 'go' and status = 'F'}),
	"\n1000|1000", 'the history says so, too');
my $most = patience(31);
is(value("select count(*), count(distinct wid) from f.wed_event where event = 'lease ran out' and role = 'worker' and held between '29 s' and '$most s'"),
	'500|500', 'so many leases have run out');
is(value('select count(*) from f.job_pool'), '0', 'nothing is left of them');
is(value(q{select count(*) from wed_sql.timer where kind <> 'l'}), '0', 'nor of their timers');

# Those who had vanished come back.
$node->safe_psql('postgres', <<'SQL');
create table f.refused (code text);
do $$
declare
    j record;
begin
    for j in select * from f.vanished loop
        begin
            perform wed_sql.complete('f', j.wid, j.tgid, j.lckid, 'n = 2');
            insert into f.refused values ('not refused');
        exception when others then
            insert into f.refused values (sqlstate);
        end;
    end loop;
end $$;
SQL
is(value('select code, count(*) from f.refused group by code'), 'WED03|500', 'their tokens are worth nothing');

stop_clean($node);
done_testing();
