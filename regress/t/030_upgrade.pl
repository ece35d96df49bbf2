# ALTER EXTENSION UPDATE makes of every release what a fresh install is, while
# flows run and the engine streams; and this test would notice if it did not.
use strict;
use warnings;

use File::Basename;
use File::Copy;
use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

chomp(my $sharedir = `pg_config --sharedir`);
my $scripts = "$sharedir/extension";
my ($current) = slurp_file("$scripts/wed_sql.control") =~ /^default_version = '(.+)'/m;
my $install = slurp_file("$scripts/wed_sql--$current.sql");
my @made;
END { unlink @made }

sub make_script
{
	my ($name, $content) = @_;
	push @made, "$scripts/wed_sql--$name.sql";
	open(my $file, '>', $made[-1]) or die "$made[-1]: $!";
	print $file $content;
	close $file;
}

my $node = new_server('upgrade');
$node->append_conf('postgresql.conf', "wed_sql.enabled = off");
$node->start;

# A database with the extension in one version and Figure 2; updated, if there is a second version.
sub new_database
{
	my ($db, $version, $update) = @_;
	$node->safe_psql('postgres', "create database $db");
	$node->safe_psql($db, "create extension wed_sql version '$version'");
	create_figure2($node, $db);
	$node->safe_psql($db, "alter extension wed_sql update to '$update'") if defined $update;
}

sub snapshot
{
	my ($db) = @_;
	return $node->safe_psql($db, slurp_file(dirname(__FILE__) . '/../include/snapshot.sql'));
}

# The lines of two snapshots that only one of them has.
sub difference
{
	my ($here, $there) = @_;
	my %count;
	$count{$_}++ foreach split /\n/, $here;
	$count{$_}-- foreach split /\n/, $there;
	return join "\n", grep { $count{$_} } sort keys %count;
}

# A next version, made up: what it adds to the present one, piece by piece, once as part of the install script and once as
# an upgrade script would have it.
(my $next = $current) =~ s/\d+$/999/;
my ($create_tables) = $install =~ /^(create function wed_sql\.create_tables\(.*?\n\$\$;\n)/ms;
(my $next_tables = $create_tables) =~ s/^( *healed +boolean not null default false),$/$1,\n            note text,/m
  or die 'create_tables() is not as this test knows it';
my $function = "create function wed_sql.added(a integer) returns integer language sql immutable as 'select a + 1';\n";
my @additions = (
	"comment on function wed_sql.added(integer) is 'Added.';\n",
	"revoke all on function wed_sql.added(integer) from public;\n",
	"create index rule_added on wed_sql.rule (tgid) where enabled;\n",
	"alter table wed_sql.follower alter column slot_name set default 'none';\n",
	"alter table wed_sql.flow set (fillfactor = 80);\n");
(my $next_install = $install) =~ s/\Q$create_tables\E/$next_tables/;
make_script($next, $next_install . $function . join('', @additions));
(my $replace_tables = $next_tables) =~ s/^create function/create or replace function/;
my $pause = "lock table wed_sql.follower;\n"; # where each batch of the engine begins
my @upgrade = ($pause, $replace_tables, <<'SQL', $function, @additions);
do $$
declare
    f wed_sql.flow;
begin
    for f in select * from wed_sql.flow loop
        execute format('alter table %s add column note text', f.wed_trace);
    end loop;
end
$$;
SQL
make_script("$current--$next", join '', @upgrade);

new_database('fresh', $next);
my $fresh = snapshot('fresh');
cmp_ok(scalar(split /\n/, $fresh), '>', 200, 'a snapshot has much to say');
new_database('updated', $current, $next);
is(difference(snapshot('updated'), $fresh), '', 'an updated extension is as a fresh one');

# An upgrade script that lacks one of these is found out.
foreach my $missing (0 .. $#upgrade)
{
	next if $upgrade[$missing] eq $function || $upgrade[$missing] eq $pause;
	my $broken = "$next.$missing";
	make_script("$current--$broken", join '', map { $upgrade[$_] } grep { $_ != $missing } 0 .. $#upgrade);
	new_database("broken_$missing", $current, $broken);
	my ($what) = $upgrade[$missing] =~ /\A(.*)$/m;
	isnt(difference(snapshot("broken_$missing"), $fresh), '', "... and is not without: $what");
}

# Under load.
$node->append_conf('postgresql.conf', "wed_sql.enabled = on");
$node->safe_psql('postgres', "drop database $_")
  foreach 'fresh', 'updated', grep { /broken/ } split /\n/, $node->safe_psql('postgres', 'select datname from pg_database');
$node->reload;

sub work
{
	my ($db) = @_;
	$node->safe_psql($db, <<'SQL');
create procedure work(start boolean) language plpgsql as $$
declare
    j record;
begin
    loop
        if start then
            insert into travel.wed_flow default values;
            commit;
        else
            perform wed_sql.sync();
        end if;
        for j in select wid, tgid, trname from travel.job_pool order by fired_at limit 3 loop
            begin
                if wed_sql.try_lock(j.wid, j.tgid) then
                    update travel.wed_flow
                       set a1 = case j.trname when 'tr_final' then 'closed' else a1 end,
                           a2 = case j.trname when 'tr_a2' then 'x' else a2 end,
                           a3 = case j.trname when 'tr_a3' then 'x' else a3 end
                     where wid = j.wid;
                end if;
            exception when sqlstate 'WED03' or sqlstate 'WED08' then
                null; -- another worker was faster
            end;
            commit;
        end loop;
        exit when start and to_regclass('public.enough') is not null;
        exit when not start and not exists (select from travel.wed_instance where status <> 'F');
    end loop;
end
$$;
SQL
}

# Until the flow has gone $n states further.
sub wait_for_more
{
	my ($db, $n) = @_;
	my $count = $node->safe_psql($db, 'select count(*) from travel.wed_trace');
	return $node->poll_query_until($db, "select count(*) > $count + $n from travel.wed_trace");
}

sub check_update
{
	my ($db, $from, $to) = @_;
	new_database($db, $from);
	wait_until_followed($node, $db);
	work($db);
	my @workers = map { $node->background_psql($db) } 1 .. 2;
	$_->query_until(qr/begins/, "\\echo begins\ncall work(true);\n") foreach @workers;
	ok(wait_for_more($db, 50), "$from to $to: a flow runs");
	my $log = -s $node->logfile;
	$node->safe_psql($db, "alter extension wed_sql update to '$to'");
	ok(wait_for_more($db, 50), '... and goes on after ALTER EXTENSION UPDATE');
	$node->safe_psql($db, 'create table enough ()');
	foreach my $worker (@workers)
	{
		$worker->quit;
		is($worker->{stderr}, '', '... without an error of a worker');
	}
	$node->safe_psql($db, 'call work(false)');
	is($node->safe_psql($db, <<'SQL'), '0R 1R 2R 3F', '... nothing lost, nothing done twice');
select wed_sql.sync('10 min') \g /dev/null
select distinct (select string_agg(version || status::text || case when healed then ' healed' else '' end, ' ' order by version)
                   from travel.wed_trace t where t.wid = f.wid)
  from travel.wed_flow f
SQL
	unlike(slurp_file($node->logfile, $log), qr/PANIC|FATAL.*wed_sql|was terminated by signal/, '... and nothing fell over');
	new_database("${db}_fresh", $to);
	is(difference(snapshot($db), snapshot("${db}_fresh")), '', '... to what a fresh install is');
	$node->safe_psql('postgres', "drop database $_") foreach $db, "${db}_fresh";
}

check_update('made_up', $current, $next);

# Every release: its install script is kept for this test, its upgrade path is installed.
foreach my $script (sort glob dirname(__FILE__) . '/../releases/wed_sql--*.sql')
{
	my ($release) = $script =~ /wed_sql--(.+)\.sql$/;
	next if $release eq $current;
	copy($script, $scripts) or die "$script: $!";
	push @made, "$scripts/" . basename($script);
	(my $db = "release_$release") =~ tr/a-z0-9_/_/c;
	check_update($db, $release, $current);
}

# Module and extension of different versions: it is said, and catalogs that the module does not know are not read.
make_script("$current--99.0.0", "alter table wed_sql.rule add column later text;\n");
make_script('0.0.1', $install);
new_database('newer', $current);
my ($ret, $out, $err) = $node->psql('newer', "alter extension wed_sql update to '99.0.0'; select wed_sql.check_version()");
like($err, qr/WARNING:  extension "wed_sql" has version 99\.0\.0 in this database, but the server has loaded version \Q$current\E/,
	'an extension that is newer than the module');
like($err, qr/HINT:  Install wed_sql 99\.0\.0 for this server, and restart it/, '... what to do');
($ret, $out, $err) = $node->psql('newer', 'insert into travel.wed_flow default values');
like($err, qr/ERROR:  extension "wed_sql" has version 99\.0\.0/, '... and its flows are not touched');

my $log = -s $node->logfile;
$node->safe_psql('postgres', 'create database older');
($ret, $out, $err) = $node->psql('older', "create extension wed_sql version '0.0.1'");
like($err, qr/WARNING:  extension "wed_sql" has version 0\.0\.1 .*HINT:  Execute ALTER EXTENSION wed_sql UPDATE/s,
	'an extension that is older than the module, and what to do');
$node->wait_for_log(qr/WARNING: .*extension "wed_sql" has version 0\.0\.1/, $log);
create_figure2($node, 'older');
$node->safe_psql('older', 'insert into travel.wed_flow default values');
is(jobs($node, 'older'), "1 tr_a2\n1 tr_a3", '... its flows go on');

$node->stop;
done_testing();
