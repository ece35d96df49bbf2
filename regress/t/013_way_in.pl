# The engine finds its own way into the server. Where it is refused, or too few
# connections, walsenders or slots are left for it, it says what to change, once,
# never takes what is reserved for people, and comes by itself when it can.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $user = getpwuid($<);
my $node = new_server('way_in');
$node->append_conf('postgresql.conf', "wed_sql.discovery_interval = 1s\nfsync = off");
$node->start;
$node->safe_psql('postgres', 'create role tester superuser login; create role client login');
create_figure2($node);
wait_for_engine($node);

my @as_tester = (extra_params => [ '-U', 'tester' ]);
my $since = 0;

sub status
{
	return $node->safe_psql('postgres', "select coalesce(last_error, '') from wed_sql.status where datname = 'postgres'", @as_tester);
}

# Until the engine has been refused several times.
sub wait_for_refusals
{
	my ($pattern) = @_;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return if log_lines($node, $pattern, $since) >= 4;
		select(undef, undef, undef, 0.1);
	}
	die "no refusal like $pattern";
}

sub hba
{
	my (@lines) = @_;
	my $file = $node->data_dir . '/pg_hba.conf';
	unlink $file;
	append_to_file($file, join "\n", @lines, "local all tester trust\n");
	$since = -s $node->logfile;
	$node->restart;
}

sub told_once
{
	my ($what, $pattern) = @_;
	my @told = log_lines($node, qr/cannot (list the databases|follow the database)/, $since);
	is(scalar @told, 1, "$what: one line in the log") or diag join "\n", @told;
	my @hints = log_lines($node, qr/HINT:  .*$pattern/, $since);
	is(scalar @hints, 1, '... with a hint') or diag join "\n", log_lines($node, qr/HINT/, $since);
	like(status(), $pattern, '... which wed_sql.status has, too');
	return;
}

sub comes_in
{
	my ($what) = @_;
	ok($node->poll_query_until('postgres', "select state = 'streaming' from wed_sql.status where datname = 'postgres'", 't'), $what)
	  or diag status();
	return;
}

# no line for it
hba();
wait_for_refusals(qr/FATAL:  no pg_hba\.conf entry/);
told_once('no line in pg_hba.conf', qr/"local all $user peer"/);
hba("local all $user peer");
comes_in('the line that it names lets it in');

# a password is wanted
hba("local all $user scram-sha-256");
wait_for_refusals(qr/FATAL:  password authentication failed/);
told_once('a password is wanted', qr/"local all $user peer".*wed_sql\.conninfo/);
hba("local all $user trust");
comes_in('it comes in again');

# the role is missing
$since = -s $node->logfile;
hba("local all $user trust", 'local all all trust');
$node->append_conf('postgresql.conf', "wed_sql.conninfo = 'user=nobody_there'");
$node->reload;
wait_for_refusals(qr/FATAL:  role "nobody_there" does not exist/);
told_once('the role is missing', qr/CREATE ROLE nobody_there SUPERUSER LOGIN/);

# another role than the operating system's
$node->append_conf('postgresql.conf', "wed_sql.conninfo = 'user=tester'");
$node->safe_psql('postgres', 'create role probe superuser login');
@as_tester = (extra_params => [ '-U', 'probe' ]);
hba('local all tester peer', "local all $user,probe trust");
wait_for_refusals(qr/FATAL:  Peer authentication failed/);
told_once('peer authentication without a map', qr/"local all tester peer map=wed_sql".*"wed_sql $user tester" into pg_ident\.conf/);
append_to_file($node->data_dir . '/pg_ident.conf', "wed_sql $user tester\n");
hba('local all tester peer map=wed_sql', "local all $user,probe trust");
comes_in('the map that it names lets it in');
$node->append_conf('postgresql.conf', "wed_sql.conninfo = ''");
hba('local all all trust');
@as_tester = ();

# only the reserved connections are left
$node->append_conf('postgresql.conf', "max_connections = 9\nsuperuser_reserved_connections = 4\nwed_sql.enabled = off");
$since = -s $node->logfile;
$node->restart;
my @clients = map { $node->background_psql('postgres', extra_params => [ '-U', 'client' ]) } 1 .. 5;
$node->append_conf('postgresql.conf', 'wed_sql.enabled = on');
$node->reload;
ok($node->poll_query_until('postgres', "select state = 'backing off' and last_error ~ 'reserved.*max_connections is too low' from wed_sql.status"),
	'no connection is free: wed_sql.status says so') or diag status();
my @people = map { $node->background_psql('postgres') } 1 .. 3;
is($people[0]->query_safe("select count(*) from pg_stat_activity where backend_type = 'client backend' and application_name <> 'wed_sql engine'"), '8',
	'... and the reserved ones are there for people');
$_->quit foreach @people;
my @told = log_lines($node, qr/databases cannot be followed, will try again.*max_connections/, $since);
cmp_ok(scalar @told, '<=', 1, '... one line in the log at the most') or diag join "\n", @told;
$_->quit foreach splice @clients, 0, 4;
comes_in('when clients have gone, it comes');
$_->quit foreach @clients;

# too few walsenders, and too few slots
$node->append_conf('postgresql.conf', 'max_connections = 50');
$node->restart;
my $others = 'create database two; create database three';
$node->safe_psql('postgres', $_) foreach split /; /, $others;
create_figure2($node, $_) foreach qw(two three);
wait_for_engine($node);
foreach my $setting (qw(max_wal_senders max_replication_slots))
{
	my $what = $setting eq 'max_wal_senders' ? 'walsenders' : 'replication slots';
	if ($setting eq 'max_replication_slots')
	{
		# a server does not start with fewer slots than there are
		$node->append_conf('postgresql.conf', 'wed_sql.enabled = off');
		$node->reload;
		$node->poll_query_until('postgres', 'select count(*) = 0 from pg_replication_slots where active');
		$node->safe_psql('postgres', 'select pg_drop_replication_slot(slot_name) from pg_replication_slots');
	}
	$node->append_conf('postgresql.conf', "$setting = 1\nwed_sql.enabled = on");
	$since = -s $node->logfile;
	$node->restart;
	ok($node->poll_query_until('postgres', "select count(*) = 2 and bool_and(last_error ~ '$setting is too low by 2') from wed_sql.status where state = 'backing off'"),
		"too few $what: wed_sql.status says how many more are needed")
	  or diag $node->safe_psql('postgres', 'select datname, state, last_error from wed_sql.status');
	my ($ret, $out, $err) = $node->psql('postgres', 'create database four');
	($ret, $out, $err) = $node->psql('four', 'create extension wed_sql');
	like($err, qr/WARNING:  all 1 $what are in use.*\n.*HINT:  Increase $setting/, '... so does CREATE EXTENSION');
	$node->safe_psql('postgres', 'drop database four');
	@told = log_lines($node, qr/databases cannot be followed, will try again.*$setting/, $since);
	cmp_ok(scalar @told, '<=', 2, '... and the log, once, not per database and try') or diag join "\n", @told;
	is(scalar(log_lines($node, qr/cannot follow the database/, $since)), 0, '... and not otherwise');
	$node->append_conf('postgresql.conf', "$setting = 10");
	$node->restart;
	ok($node->poll_query_until('postgres', "select count(*) = 3 and bool_and(state = 'streaming') from wed_sql.status"),
		'... and all are followed when there are enough');
}

stop_clean($node);
done_testing();
