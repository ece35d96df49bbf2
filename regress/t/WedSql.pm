# What the TAP tests share: a server with wed_sql, its engine, and the flow of
# Figure 2. Nothing here sleeps: what takes time is polled for.
package WedSql;

use strict;
use warnings;

use Exporter 'import';
use Fcntl qw(O_RDWR O_CREAT);
use IO::Handle;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

our @EXPORT = qw(new_server create_figure2 engine_pid wait_for_engine wait_until_gone children
  job_tgid perform trace figure2_trace jobs
  engine_off engine_on wait_until_followed flaws
  log_lines stop_clean
  watch_machine patience);

# A server that is not started yet; cluster and init are arguments for these.
sub new_server
{
	my ($name, %how) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name, %{ $how{cluster} // {} });
	$node->init(allows_streaming => 'logical', %{ $how{init} // {} });
	$node->append_conf('postgresql.conf', <<CONF);
shared_preload_libraries = 'wed_sql'
fsync = on
max_connections = 50
# tests have an engine stand still, and a slow machine takes its time over them
wed_sql.engine_timeout = 1h
# a machine that stands still is no condition that does not end
wed_sql.condition_timeout = 30s
log_statement = none
log_line_prefix = '%m [%p] %b %q%a '
CONF
	return $node;
}

# The extension, and Figure 2 in schema travel.
sub create_figure2
{
	my ($node, $db) = @_;
	$node->safe_psql($db // 'postgres', <<'SQL');
create extension if not exists wed_sql;
select wed_sql.create_flow('travel');
set search_path = travel, wed_sql;
begin;
insert into wed_attr (aname, adv) values ('a1','ready');
insert into wed_attr (aname) values ('a2'),('a3');
insert into wed_trig (tgname,trname,cname,cpred,timeout)
values ('t1','tr_a2','c1', $$a1='ready' and (a2 is null)$$, '3d18h');
insert into wed_trig (tgname,trname,cname,cpred,timeout)
values ('t2','tr_a3','c2', $$a1='ready' and (a3 is null)$$, '00:00:30');
insert into wed_trig (tgname,trname,cname,cpred,timeout)
values ('tf','tr_final','cf', $$a1='ready' and (a2 is not null) and (a3 is not null)$$, '00:00:10');
insert into wed_trig (cpred,cfinal) values ($$a1 <> 'ready'$$, True);
commit;
SQL
}

sub engine_pid
{
	my ($node) = @_;
	return $node->safe_psql('postgres', 'select engine_pid from wed_sql.status limit 1');
}

# Until an engine, other than that of pid $not, streams from all databases that
# it knows. Returns its pid.
sub wait_for_engine
{
	my ($node, $not) = @_;
	$not //= 0;
	$node->poll_query_until('postgres', <<SQL) or die 'no engine came';
select count(*) > 0 and bool_and(state = 'streaming') and min(engine_pid) <> $not from wed_sql.status
SQL
	return engine_pid($node);
}

# Until a process is no more (or waits to be buried by its parent, which is as good).
sub wait_until_gone
{
	my ($pid) = @_;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return 1 if !process_lives($pid);
		select(undef, undef, undef, 0.1);
	}
	return 0;
}

sub process_lives
{
	my ($pid) = @_;
	open(my $stat, '<', "/proc/$pid/stat") or return 0;
	my $line = <$stat> // '';
	return $line =~ /^\d+ \(.*\) (\w)/s && $1 ne 'Z';
}

# The pids of all processes that descend from a process, and it.
sub children
{
	my ($root) = @_;
	my %parent;
	foreach my $stat (glob '/proc/[0-9]*/stat')
	{
		open(my $file, '<', $stat) or next;
		my $line = <$file> // '';
		$parent{$1} = $2 if $line =~ /^(\d+) \(.*\) \w (\d+)/s;
	}
	my @family = ($root);
	foreach my $pid (@family)
	{
		push @family, grep { $parent{$_} == $pid } keys %parent;
	}
	return @family;
}

# The tgid of a pending job of Figure 2; waits until it is there.
sub job_tgid
{
	my ($node, $wid, $trname, $db) = @_;
	my $tgid = $node->safe_psql($db // 'postgres', <<SQL);
select wed_sql.sync('10 min') \\g /dev/null
select tgid from travel.job_pool where wid = $wid and trname = '$trname';
SQL
	die "no job $trname of instance $wid" if $tgid eq '';
	return $tgid;
}

# Performs a transition of Figure 2 as a worker would.
sub perform
{
	my ($node, $wid, $trname, $assignments, $db) = @_;
	my $tgid = job_tgid($node, $wid, $trname, $db);
	$node->safe_psql($db // 'postgres', <<SQL);
begin;
select 1 / wed_sql.try_lock($wid, $tgid)::int;
update travel.wed_flow set $assignments where wid = $wid;
commit;
SQL
}

# History of an instance, one line per state: trw > trf status.
sub trace
{
	my ($node, $wid, $db) = @_;
	return $node->safe_psql($db // 'postgres', <<SQL);
select wed_sql.sync('10 min') \\g /dev/null
select concat_ws(' ', version, trw, '>', array_to_string(trf, ','), status)
  from travel.wed_trace where wid = $wid order by version;
SQL
}

# What Algorithm 1 makes of an instance whose branches end in this order.
sub figure2_trace
{
	my ($first, $second) = @_;
	return join "\n", '0 > tr_a2,tr_a3 R', "1 $first >  R", "2 $second > tr_final R", '3 tr_final >  F';
}

# Pending jobs: wid trname, in order.
sub jobs
{
	my ($node, $db) = @_;
	return $node->safe_psql($db // 'postgres', <<'SQL');
select wed_sql.sync('10 min') \g /dev/null
select wid || ' ' || trname from travel.job_pool order by wid, tgid;
SQL
}

sub slot_is_active
{
	my ($node, $active) = @_;
	$node->poll_query_until('postgres',
		"select count(*) " . ($active ? '>' : '=') . " 0 from pg_replication_slots where active and slot_name like 'wed_sql_%'")
	  or die 'the engine does not ' . ($active ? 'start' : 'stop');
}

# Stops the engine in all databases; states are written all the same.
sub engine_off
{
	my ($node) = @_;
	$node->append_conf('postgresql.conf', 'wed_sql.enabled = off');
	$node->reload;
	slot_is_active($node, 0);
}

sub engine_on
{
	my ($node) = @_;
	$node->append_conf('postgresql.conf', 'wed_sql.enabled = on');
	$node->reload;
	slot_is_active($node, 1);
}

# Until all flows of a database are followed: what had to be healed has been.
sub wait_until_followed
{
	my ($node, $db) = @_;
	$node->poll_query_until($db // 'postgres', 'select count(*) = 0 from wed_sql.warnings()')
	  or die 'not followed: ' . $node->safe_psql($db // 'postgres', 'select * from wed_sql.warnings()');
	$node->safe_psql($db // 'postgres', q{select wed_sql.sync('10 min')});
}

# What is not as Algorithm 1 says of travel; '' if nothing. Every current state has its line, what pends are the jobs,
# and healed marks the gaps.
sub flaws
{
	my ($node, $db) = @_;
	return $node->safe_psql($db // 'postgres', <<'SQL');
select wed_sql.sync('10 min') \g /dev/null
select 'no line', f.wid, (f._stamp).version from travel.wed_flow f
 where not exists (select from travel.wed_trace t where t.wid = f.wid and t.version = (f._stamp).version)
union all
select 'a line of the future', t.wid, t.version from travel.wed_trace t join travel.wed_flow f using (wid) where t.version > (f._stamp).version
union all
select 'jobs', f.wid, (f._stamp).version from travel.wed_flow f join travel.wed_trace t on t.wid = f.wid and t.version = (f._stamp).version
 where t.pending <> array(select j.tgid from travel.job_pool j where j.wid = f.wid order by 1)
union all
select 'healed', t.wid, t.version from travel.wed_trace t
 where t.healed <> (t.version > 0 and not exists (select from travel.wed_trace p where p.wid = t.wid and p.version = t.version - 1));
SQL
}

# A process that measures how long the machine lets a short sleep and a small durable write take. What a server did late
# is thus told from what the machine did: nobody keeps a promise of a quarter of a second without a disk for two.
my ($watcher, $watched);

sub watch_machine
{
	my $parent = $$;
	$watched = PostgreSQL::Test::Utils::tempdir() . '/longest';
	PostgreSQL::Test::Utils::append_to_file($watched, pack('d', 0));
	defined($watcher = fork) or die "could not fork: $!";
	return if $watcher;
	eval { watch($parent) };
	POSIX::_exit(0);
}

sub watch
{
	my ($parent) = @_;
	close $_ foreach *STDIN, *STDOUT, *STDERR;
	sysopen(my $file, $watched, O_RDWR) or return;
	my ($began, $longest) = (Time::HiRes::time, 0);
	while (getppid() == $parent)
	{
		Time::HiRes::sleep(0.01);
		sysseek($file, 0, 0) && syswrite($file, pack('d', $longest)) && $file->sync or return;
		my $now = Time::HiRes::time;
		$longest = $now - $began if $now - $began > $longest;
		$began = $now;
	}
}

# So many seconds, and what has to be added on this machine: what is promised takes a few steps, each of which may meet
# the longest such stall.
sub patience
{
	my ($seconds) = @_;
	my $longest = unpack('d', PostgreSQL::Test::Utils::slurp_file($watched));
	note(sprintf 'the machine stood still for %.3f s at most', $longest);
	return $seconds + 4 * $longest;
}

END
{
	my $status = $?;
	if ($watcher)
	{
		kill 'KILL', $watcher;
		waitpid $watcher, 0;
	}
	$? = $status;
}

# Lines of the server's log that match, since a position in it.
sub log_lines
{
	my ($node, $pattern, $since) = @_;
	return grep { /$pattern/ } split /\n/, substr(slurp_file($node->logfile), $since // 0);
}

# Drops the extension everywhere and stops the server: nothing of wed_sql stays behind.
sub stop_clean
{
	my ($node) = @_;
	my @left;
	foreach my $db (split /\n/, $node->safe_psql('postgres', 'select datname from pg_database where datallowconn order by 1'))
	{
		# the follower may be in its way: then the server ends one of the two
		for (1 .. 5)
		{
			my ($ret, $out, $err) = $node->psql($db, 'drop extension if exists wed_sql cascade');
			last if $ret == 0;
			die $err if $err !~ /deadlock detected/;
		}
		push @left, "publication in $db" if $node->safe_psql($db, 'select count(*) from pg_publication') ne '0';
	}
	$node->poll_query_until('postgres', "select count(*) = 0 from pg_replication_slots where slot_name like 'wed_sql%'")
	  or push @left, 'slot';
	$node->poll_query_until('postgres', "select count(*) = 0 from pg_stat_activity where application_name = 'wed_sql engine'")
	  or push @left, 'session';
	my @family = children((split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0]);
	$node->stop;
	push @left, map { "process $_" } grep { !wait_until_gone($_) } @family;
	is(join(', ', @left), '', 'nothing is left behind');
	return;
}

1;
