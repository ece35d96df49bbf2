# What the engine does is visible to Prometheus, on this machine alone unless
# somebody says otherwise: off by default, complete, well-formed, and there also
# when a database or a whole engine is not. The alerts are tested with it.
use strict;
use warnings;

use HTTP::Tiny;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $prometheus = $ENV{WED_SQL_PROMETHEUS};
my $monitoring = '../monitoring';
$monitoring = 'monitoring' if -d 'monitoring';
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $http = HTTP::Tiny->new(timeout => 20);

my $node = new_server('metrics');
$node->append_conf('postgresql.conf', "wed_sql.discovery_interval = 1s\nautovacuum = off");
$node->start;
create_figure2($node);
$node->safe_psql('postgres', 'create database other');
create_figure2($node, 'other');
my $engine = wait_for_engine($node);

# Sockets that a process listens on.
sub listening
{
	my ($pid) = @_;
	my %inode = map { (readlink($_) // '') =~ /^socket:\[(\d+)\]/ ? ($1 => 1) : () } glob "/proc/$pid/fd/*";
	my @found;
	foreach my $table ('tcp', 'tcp6')
	{
		open(my $file, '<', "/proc/net/$table") or next;
		while (<$file>)
		{
			my @f = split;
			push @found, $f[1] if @f > 9 && $f[3] eq '0A' && $inode{ $f[9] };
		}
	}
	return @found;
}

sub until_true
{
	my ($what, $test) = @_;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $value = $test->();
		return $value if $value;
		select(undef, undef, undef, 0.1);
	}
	die "never: $what";
}

sub scrape
{
	my $answer = $http->get("http://127.0.0.1:$port/metrics");
	return $answer->{success} ? $answer->{content} : '';
}

# The value of a series; undef if it is not there.
sub value
{
	my ($metrics, $series) = @_;
	return $metrics =~ /^\Q$series\E (\S+)$/m ? $1 + 0 : undef;
}

# Until a series has a value.
sub wait_for
{
	my ($series, $value) = @_;
	return until_true("$series $value", sub {
		my $metrics = scrape();
		my $now = value($metrics, $series);
		return defined $now && $now == $value && $metrics;
	});
}

sub setting
{
	my ($name, $value) = @_;
	$node->safe_psql('postgres', "alter system set $name = '$value'");
	$node->reload;
}

is(join(' ', listening($engine)), '', 'by default the engine listens nowhere');

# a port that is taken
use IO::Socket::INET;
my $taken = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 1, ReuseAddr => 1) or die $!;
setting('wed_sql.metrics_address', ":$port");
until_true('a warning', sub { log_lines($node, qr/WARNING:  metrics are not served, will try again/) });
is(engine_pid($node), $engine, 'a port that is taken is no reason to end');
close $taken;
until_true('served', sub { scrape() });
is(join(' ', listening($engine)), sprintf('0100007F:%04X', $port), 'without a host, it listens on loopback alone');

# what happens is counted
$node->safe_psql('postgres', 'insert into travel.wed_flow default values') for 1 .. 3;
perform($node, 1, 'tr_a2', "a2 = 'x'");
perform($node, 1, 'tr_a3', "a3 = 'x'");
perform($node, 1, 'tr_final', "a1 = 'closed'");
perform($node, 2, 'tr_a2', "a1 = null");
$node->safe_psql('postgres', q{select wed_sql.count_event(flow_id, 'tr_a3', 'timed out') from wed_sql.flow});
my $travel = 'database="postgres",flow="travel"';
wait_for("wed_sql_jobs_timed_out_total{$travel,transition=\"tr_a3\"}", 1);
my $metrics = wait_for("wed_sql_jobs_waiting{$travel,transition=\"tr_a3\"}", 2); # looked up every 5 seconds at the most
foreach (
	[ "wed_sql_up{database=\"postgres\"}", 1 ], [ "wed_sql_up{database=\"other\"}", 1 ],
	[ "wed_sql_statistics_up{database=\"postgres\"}", 1 ], [ 'wed_sql_engine_starts_total', 1 ],
	[ "wed_sql_instances_started_total{$travel}", 3 ], [ "wed_sql_states_total{$travel}", 7 ],
	[ "wed_sql_instances_finished_total{$travel}", 1 ], [ "wed_sql_exceptions_total{$travel}", 0 ],
	[ "wed_sql_jobs_fired_total{$travel,transition=\"tr_a2\"}", 3 ], [ "wed_sql_jobs_done_total{$travel,transition=\"tr_a2\"}", 2 ],
	[ "wed_sql_jobs_waiting{$travel,transition=\"tr_a3\"}", 2 ], [ "wed_sql_jobs_waiting{$travel,transition=\"tr_final\"}", 0 ],
	[ "wed_sql_jobs_running{$travel,transition=\"tr_a3\"}", 0 ],
	[ "wed_sql_job_wait_seconds_count{$travel,transition=\"tr_a2\"}", 2 ],
	[ "wed_sql_job_run_seconds_bucket{$travel,transition=\"tr_a2\",le=\"+Inf\"}", 2 ],
	[ 'wed_sql_timers_due{database="postgres"}', 0 ], [ 'wed_sql_timers_late_seconds{database="postgres"}', 0 ],
	[ 'wed_sql_follower_latency_seconds_count{database="postgres"}', 7 ])
{
	my ($series, $want) = @$_;
	is(value($metrics, $series), $want, $series);
}
ok(value($metrics, 'wed_sql_slot_retained_bytes{database="postgres"}') > 0, 'what the slot keeps back is known');
ok(defined value($metrics, "wed_sql_jobs_oldest_timestamp_seconds{$travel,transition=\"tr_a3\"}"), 'how old the oldest job is, too');
is($metrics =~ /wid/ ? 1 : 0, 0, 'no instance is a label');
like($http->get("http://127.0.0.1:$port/-/healthy")->{content}, qr/runs/, 'the engine says that it runs');
like($http->get("http://127.0.0.1:$port/")->{content}, qr{/metrics}, 'and where its metrics are');

my $looking = q{select count(*) from pg_stat_activity where datname = 'postgres' and application_name = 'wed_sql engine' and query ~ 'transition_statistics'};
until_true('looking', sub { scrape(); $node->safe_psql('postgres', $looking) eq '1' });
pass('a session looks things up while somebody asks');

# a database that is not there any more, and one that cannot be reached
$node->safe_psql('other', 'drop extension wed_sql cascade');
until_true('gone', sub { my $m = scrape(); $m ne '' && $m !~ /database="other"/ });
pass('a database without the extension is not shown');
$node->safe_psql('postgres', 'drop database other');
$node->safe_psql('postgres', 'create database third');
create_figure2($node, 'third');
wait_for('wed_sql_up{database="third"}', 1);
my @sessions = split /\n/, $node->safe_psql('postgres', q{select pid from pg_stat_activity where datname = 'third'});
$node->safe_psql('postgres', q{alter role all in database third set session_preload_libraries = 'nothing_that_exists'});
$node->safe_psql('postgres', "select pg_terminate_backend($_)") for @sessions;
$metrics = wait_for('wed_sql_up{database="third"}', 0);
is(value($metrics, 'wed_sql_up{database="postgres"}'), 1, 'a database that cannot be reached leaves the others in the metrics');
ok(value(wait_for('wed_sql_statistics_up{database="third"}', 0), 'wed_sql_follower_last_error_timestamp_seconds{database="third"}') > time() - 600,
	'... and when it failed');
$node->safe_psql('postgres', q{alter role all in database third reset session_preload_libraries});
wait_for('wed_sql_up{database="third"}', 1);

# an engine that is killed
kill 'KILL', $engine;
wait_for_engine($node, $engine);
$metrics = wait_for('wed_sql_engine_starts_total', 2);
is($node->safe_psql('postgres', q{select done from wed_sql.stat_transition where flow = 'travel' and trname = 'tr_a2'}), '2',
	'what was counted before an engine was killed stays in the views');

SKIP:
{
	skip 'no Prometheus on this machine', 9 if !$prometheus;
	my $dir = PostgreSQL::Test::Utils::tempdir();

	# what promtool says
	my ($out, $err) = ('', '');
	$metrics = scrape();
	IPC::Run::run([ "$prometheus/promtool", 'check', 'metrics' ], \$metrics, \$out, \$err);
	is($out . $err, '', 'promtool finds nothing wrong with the metrics');
	command_ok([ "$prometheus/promtool", 'check', 'rules', "$monitoring/prometheus/alerts.yml" ], 'the alerts are well-formed');
	command_ok([ "$prometheus/promtool", 'check', 'config', "$monitoring/prometheus/prometheus.yml" ], '... and so is the configuration');
	command_ok([ "$prometheus/promtool", 'test', 'rules', "$monitoring/prometheus/alerts_test.yml" ], 'the alerts fire when they have to');

	# TLS and a password, and a Prometheus that has both
	system_or_bail('openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=localhost',
		'-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', "$dir/key.pem", '-out', "$dir/cert.pem");
	append_to_file("$dir/web.yml", <<'YML');
tls_server_config: {cert_file: cert.pem, key_file: key.pem}
basic_auth_users: {prometheus: $2a$04$fB29Ex8uz.GFqKEMR6dT0.zr7.82oSC0QKRNcMUvs4JkRXXSLQ6hK}
YML
	setting('wed_sql.metrics_config_file', "$dir/web.yml");
	until_true('TLS', sub { $http->get("http://127.0.0.1:$port/metrics")->{status} != 200 });
	my $own = PostgreSQL::Test::Cluster::get_free_port();
	append_to_file("$dir/prometheus.yml", <<YML);
global: {scrape_interval: 3s, evaluation_interval: 1s}
rule_files: [$monitoring/prometheus/alerts.yml]
scrape_configs:
  - job_name: wed_sql
    scheme: https
    tls_config: {ca_file: $dir/cert.pem}
    basic_auth: {username: prometheus, password: secret}
    static_configs: [{targets: ["127.0.0.1:$port"]}]
  - job_name: stranger
    scheme: https
    tls_config: {ca_file: $dir/cert.pem}
    static_configs: [{targets: ["127.0.0.1:$port"]}]
YML
	my $absolute = `realpath $monitoring`;
	chomp $absolute;
	my $config = slurp_file("$dir/prometheus.yml");
	$config =~ s/\Q$monitoring\E/$absolute/;
	open(my $file, '>', "$dir/prometheus.yml") or die $!;
	print $file $config;
	close $file;
	my $log = '';
	my $server = IPC::Run::start([ "$prometheus/prometheus", "--config.file=$dir/prometheus.yml", "--storage.tsdb.path=$dir/data",
			"--web.listen-address=127.0.0.1:$own" ], '<', \undef, '>&', \$log);

	# The value that Prometheus has of an expression; '' if none.
	my $query = sub {
		my ($expression) = @_;
		my $answer = $http->get("http://127.0.0.1:$own/api/v1/query?" . $http->www_form_urlencode({ query => $expression }));
		return '' if !$answer->{success};
		my $result = decode_json($answer->{content})->{data}{result};
		return @$result ? $result->[0]{value}[1] : '';
	};
	eval {
		until_true('scraped', sub { $query->('wed_sql_jobs_waiting{flow="travel",transition="tr_a3",database="postgres"}') eq '2' });
		pass('a Prometheus scrapes the engine, by TLS and with a password');
		until_true('up', sub { $query->('up{job="wed_sql"}') eq '1' });
		pass('... and finds it up');
		until_true('followed', sub { $query->('wed_sql_up{database="postgres"}') eq '1' });
		pass('... and the database followed');
		until_true('a stranger', sub { $query->('up{job="stranger"}') eq '0' });
		pass('one without the password gets nothing');
		is($query->('count(ALERTS{alertstate="firing"}) or vector(0)'), '0', 'no alert fires');
		1;
	} or diag($@, $log);
	$server->signal('TERM');
	$server->finish;
	setting('wed_sql.metrics_config_file', '');
}

setting('wed_sql.metrics_address', '');
until_true('it listens nowhere', sub { !listening(engine_pid($node)) });
pass('switched off again, it listens nowhere');
$node->poll_query_until('postgres', "select ($looking) = 0");
pass('the session for statistics is given back');
$node->safe_psql('postgres', 'drop database third');
stop_clean($node);
done_testing();
