# Every function of the extension, called with what nobody would call it with: nulls, numbers at their limits, tables
# that are no flow's, arrays of odd shapes, names with quotes; by a stranger, a worker role, the owner of a flow and a
# superuser. Whatever they answer: the server goes on, nobody has gained a right, and no session has ended.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $rounds = $ENV{WED_SQL_HOSTILE_ROUNDS} // 3;    # calls of each function and role with what is drawn
my $seed = $ENV{WED_SQL_HOSTILE_SEED} // time() % 100_000;
srand($seed);
diag "seed $seed";

my $node = new_server('hostile_calls', init => { extra => [ '--encoding=UTF8', '--locale=C.UTF-8' ] });
$node->append_conf('postgresql.conf', "max_prepared_transactions = 2");
$node->start;
create_figure2($node);
$node->safe_psql('postgres', <<'SQL');
create role stranger login;
create role worker login;
create role owner login;
grant create on database postgres to owner;
grant execute on function wed_sql.create_flow(text), wed_sql.drop_flow(text), wed_sql.grant_worker(text, text, name), wed_sql.revoke_worker(text, text, name) to owner;
set role owner;
select wed_sql.create_flow('own');
insert into own.wed_attr (aname, atype) values ('n', 'integer'), ('doc', 'jsonb');
insert into own.wed_trig (trname, cpred, undo) values ('go', 'n > 0', 'go');
insert into own.wed_trig (cpred, cfinal) values ('n = 0', true);
insert into own.wed_flow (n) values (1), (2), (0);
select wed_sql.grant_worker('own', 'go', 'worker');
reset role;
create table public.stranger (wid bigint primary key, _stamp wed_sql.stamp);
grant select on public.stranger to public;
create view public.seen as select 1 as wid;
select wed_sql.sync();
SQL
my $started = $node->safe_psql('postgres', 'select pg_postmaster_start_time()');
my $before = snapshot();
my $log = -s $node->logfile;

my $long = "repeat('x', 200000)";
my $deep = "(repeat('[', 3000) || repeat(']', 3000))::jsonb";
my %values = (
	text => [ "''", "'own'", "'travel'", "'go'", "'_EXCPT'", q{$$'; drop table public.stranger; --$$}, $long, q{E'a\nb\u202e'}, "'n = 1'", "'n = 1 where true'", "'n > 0) or (true'", "'{'", "'no such'" ],
	name => [ "'own'", "'worker'", "'stranger'", "'no such'", "''", q{'"'} ],
	int8 => [ '0', '1', '2', '-1', '2147483648', '140728898420736', '9223372036854775807', '(-9223372036854775808)' ],
	int4 => [ '0', '1', '2', '3', '-1', '2147483647', '(-2147483648)' ],
	bool => [ 'true', 'false' ],
	interval => [ "'0'", "'-1 day'", "'10 ms'", "'178000000 years'", "'-178000000 years'", "'1 month -30 days'" ],
	timestamptz => [ "'infinity'", "'-infinity'", 'now()', "'294276-12-31'", "'4713-01-01 BC'" ],
	regclass => [ "'own.wed_flow'", "'travel.wed_flow'", "'own.job_pool'", "'pg_class'", "'pg_class_oid_index'", "'public.stranger'", "'public.seen'", '0', '4294967295', "'wed_sql.tgid_seq'" ],
	oid => [ '0', '4294967295', "'worker'::regrole", "'own.wed_flow'::regclass", '10' ],
	regrole => [ '0', "'worker'", '4294967295' ],
	jsonb => [ "'{}'", "'[]'", "'1'", "'null'", q{'{"n": "x"}'}, q{'{"n": 99999999999}'}, q{'{"no": 1}'}, q{'{"doc": {"a": [1]}}'}, q{'{"flow": "own", "wid": 1}'}, $deep ],
	_int8 => [ "'{}'", "'{null}'", "'{1}'", "'{{1,2},{3,4}}'", "'[5:6]={1,2}'", 'array_fill(1::bigint, array[20000])', "'{-1,9223372036854775807}'" ],
	_int4 => [ "'{}'", "'{null}'", "'{1}'", "'{{1,2},{3,4}}'", "'[-2147483648:-2147483647]={1,2}'", 'array_fill(1, array[20000])' ],
	_text => [ "'{}'", "'{null}'", "'{go,go}'", "'{{a,b},{c,d}}'" ],
	_xid => [ "'{}'", "'{0,1,2,3}'", "'{4294967295}'", "'{null}'" ],
	xid => [ "'0'", "'3'", "'4294967295'" ],
	pg_lsn => [ "'0/0'", "'FFFFFFFF/FFFFFFFF'" ],
	char => [ "'x'", "''" ],
	float8 => [ "'NaN'", "'Infinity'", '-1', '1e308' ],
	any => [ 'null', '1', "'x'::text", "'{1}'::int[]" ],
	uuid => [ "'00000000-0000-0000-0000-000000000000'" ],
	_oid => [ "'{}'", "'{0,4294967295}'" ],
	_char => [ "'{}'", "'{a,null}'" ],
	_jsonb => [ "'{}'", "'{null}'", q{array['{"n": 1}'::jsonb, '[]', 'null', '{"n": "x"}']}, q{array['{"no": 1}'::jsonb]}, "array[$deep]", q{array[array['{}'::jsonb, '{}']]} ],
	_tid => [ "'{}'", q{'{"(0,1)","(4294967295,65535)"}'} ],
	_timestamptz => [ "'{}'", "'{infinity,null}'" ],
	# rows of tables of the extension: of nulls
	(map { ($_ => [ 'null' ]) } qw(flow stamp rule signal timer instruction _timer)));

# The functions, with the types of their arguments.
my @functions = map { [ split /\|/, $_, -1 ] } split /\n/, $node->safe_psql('postgres', <<'SQL');
select p.proname, (select string_agg(t.typname, ',' order by i) from unnest(p.proargtypes) with ordinality a(type, i) join pg_type t on t.oid = a.type)
  from pg_proc p join pg_depend d on d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e'
  join pg_extension e on e.oid = d.refobjid and e.extname = 'wed_sql'
 where p.prokind = 'f' and p.prorettype not in ('trigger'::regtype, 'event_trigger'::regtype)
 order by 1, 2
SQL
cmp_ok(scalar @functions, '>', 80, 'there are functions to call');
my %unknown = map { $_ => 1 } grep { $_ ne '' && !$values{$_} } map { split /,/, $_->[1] } @functions;
is(join(' ', sort keys %unknown), '', '... and there is something bad for each type of argument');

sub argument
{
	my ($type) = @_;
	return rand() < 0.12 ? 'null' : value($type);
}

sub value
{
	my ($type) = @_;
	my $pool = $values{$type};
	my $value = $pool->[ int rand @$pool ];
	return $value if $type eq 'any';
	my $schema = $pool->[0] eq 'null' ? 'wed_sql' : 'pg_catalog';
	return "cast($value as $schema.\"$type\")";
}

sub snapshot
{
	return $node->safe_psql('postgres', <<'SQL');
select rolname, rolsuper, rolreplication, rolcreaterole, rolcreatedb, rolbypassrls from pg_roles where oid > 16383 or rolname = 'postgres' order by 1;
select c.oid::regclass, c.relowner::regrole, c.relacl, c.relrowsecurity from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname in ('own', 'travel', 'public', 'wed_sql') order by 1;
select proname, proargtypes, prosecdef, proacl from pg_proc where pronamespace = 'wed_sql'::regnamespace order by 1, 2;
select roleid::regrole, member::regrole from pg_auth_members where roleid > 16383 order by 1, 2;
select wid, n, doc, (_stamp).version from own.wed_flow order by 1;
select * from own.wed_trig order by tgid;
SQL
}

foreach my $role (qw(stranger worker owner postgres))
{
	my $script = "set statement_timeout = '500ms'; set lock_timeout = '200ms'; set client_min_messages = error;\n";
	foreach my $f (@functions)
	{
		my ($name, $types) = @$f;
		my @types = split /,/, $types;
		# all null, each of them null, and what is drawn
		my @calls = map { my $null = $_; [ map { $null < 0 || $_ == $null ? 'null' : value($types[$_]) } 0 .. $#types ] } -1 .. $#types;
		push @calls, map { [ map { argument($_) } @types ] } 1 .. (@types ? $rounds : 0);
		# nothing stays of what succeeds
		$script .= "begin; select * from wed_sql.$name(" . join(', ', @$_) . ") limit 10; rollback;\n" foreach @calls;
	}
	$script .= "select 'the end';\n";
	my ($stdout, $stderr) = ('', '');
	my $ret = $node->psql('postgres', $script, on_error_stop => 0, stdout => \$stdout, stderr => \$stderr,
		extra_params => [ '-U', $role, '-v', 'VERBOSITY=verbose', '-v', 'SHOW_CONTEXT=never' ]);
	is($ret, 0, "$role: the session has lived to the end");
	like($stdout, qr/the end$/, '... of all calls');
	my %codes;
	$codes{$1}++ while $stderr =~ /ERROR:  (\w{5}):/g;
	note join ' ', map { "$_: $codes{$_}" } sort keys %codes;
	my @internal = $stderr =~ /ERROR:  (XX\w{3}: .*)/g;
	is(scalar @internal, 0, '... and was told what is wrong with them') or diag join "\n", sort @internal if $role ne 'postgres';
	is($node->safe_psql('postgres', 'select pg_postmaster_start_time()'), $started, '... the server has not restarted');
}

my $after = snapshot();
is($after, $before, 'nobody has gained anything, and nothing has changed');
is(join("\n", log_lines($node, qr/terminated by signal|PANIC|server process .* exited/, $log)), '', 'no process has died');
$node->safe_psql('postgres', 'insert into own.wed_flow (n) values (7)');
is($node->safe_psql('postgres', q{select wed_sql.sync() \g /dev/null
select count(*) from own.job_pool where payload ->> 'n' = '7'}), '1', 'flows go on');

stop_clean($node);
done_testing();
