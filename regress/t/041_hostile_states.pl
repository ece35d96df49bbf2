# The engine gets states as text, from a walsender that prints them for all flows of the database. One that is small as
# it is stored and does not end when it is printed, or that cannot be printed, must not get there: it would stop the
# others' flows, and would still be in the WAL when its own has been dropped.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('hostile_states');
# less than what it is by default makes this quicker
$node->append_conf('postgresql.conf', "wed_sql.max_state_size = '1MB'");
$node->start;
create_figure2($node);
wait_for_engine($node);
my $started = $node->safe_psql('postgres', 'select pg_postmaster_start_time()');

$node->safe_psql('postgres', <<'SQL');
create role mallory login;
grant create on database postgres to mallory;
grant execute on function wed_sql.create_flow(text) to mallory;
set role mallory;
create schema mal;
select wed_sql.create_flow('trap');
insert into trap.wed_attr (aname, atype) values ('n', 'integer'), ('doc', 'jsonb'), ('numbers', 'numeric[]');
create type mal.t0 as (a text);
do $$ begin for i in 1 .. 20 loop execute format('create type mal.t%s as (a mal.t%s)', i, i - 1); end loop; end $$;
create domain mal.nested as mal.t20;
insert into trap.wed_attr (aname, atype) values ('nested', 'mal.t20'), ('inside', 'mal.nested'), ('several', 'mal.t20[]');
insert into trap.wed_trig (trname, cpred) values ('go', 'n > 0');
insert into trap.wed_flow (n) values (1);
SQL
my @mallory = (extra_params => [ '-U', 'mallory' ]);

# A row of one character that is quoted as often as it is nested.
my $nested = "row('\"')::mal.t0";
$nested = "row($nested)::mal.t$_" foreach 1 .. 20;
$nested = "nullif($nested, null)";

foreach my $attack (
	[ 'a document of numbers', 'doc', 'to_jsonb(array_fill(1e131071::numeric, array[40]))' ],
	[ 'an array of numbers', 'numbers', 'array_fill(1e131071::numeric, array[40])' ],
	[ 'quotes in quotes', 'nested', $nested ],
	[ '... in a domain', 'inside', $nested ],
	[ '... in an array', 'several', "array[$nested]" ])
{
	my ($what, $attribute, $value) = @$attack;
	my ($ret, $out, $err) = $node->psql('postgres',
		"set statement_timeout = '60s'; insert into trap.wed_flow (n, $attribute) values (2, $value)",
		extra_params => [ '-U', 'mallory', '-v', 'VERBOSITY=verbose' ]);
	isnt($ret, 0, "$what: refused");
	like($err, qr/ERROR:  WED09: state of an instance of WED-flow "trap" is too large/, '... with a reason');
}

# what is there already, by the default of an attribute, has no guard to pass; its next state has
$node->safe_psql('postgres', q{insert into trap.wed_attr (aname, atype, adv) values ('late', 'numeric[]', array_fill(1e131071::numeric, array[40])::text)}, @mallory);
my ($ret, $out, $err) = $node->psql('postgres', q{select wed_sql.cancel('trap', 1)}, @mallory);
like($err, qr/ERROR:  state of an instance of WED-flow "trap" is too large/, 'nor by an intervention');
$node->safe_psql('postgres', q{delete from trap.wed_attr where aname = 'late'; select wed_sql.cancel('trap', 1)}, @mallory);

# what nests deeply, and can be printed, is a state like any other
$node->safe_psql('postgres', <<'SQL', @mallory);
insert into trap.wed_attr (aname, atype) values ('path', 'jsonpath');
insert into trap.wed_flow (n, path) values (3, (repeat('-(', 2000) || '1' || repeat(')', 2000))::jsonpath);
insert into trap.wed_flow (n, doc) values (3, (repeat('[', 5000) || repeat(']', 5000))::jsonb);
SQL
$node->safe_psql('postgres', 'insert into travel.wed_flow default values');
is(jobs($node), "1 tr_a2\n1 tr_a3", 'other flows go on');
is($node->safe_psql('postgres', q{select count(*) from trap.job_pool where wid <> 1}), '2', '... and so does this one');

# characters that UTF-8 has none for
$node->safe_psql('postgres', "create database western encoding 'WIN1252' lc_collate 'C' lc_ctype 'C' template template0");
create_figure2($node, 'western');
$node->safe_psql('western', q{create type public.mood as enum ('fine'); insert into travel.wed_attr (aname, atype) values ('mood', 'public.mood')});
foreach my $command (
	q{insert into travel.wed_flow (a2) values (E'\x81')}, q{insert into travel.wed_flow (a2) values (repeat('x', 100000) || E'\x81')},
	q{set client_encoding = 'WIN1252'; alter type public.mood rename value 'fine' to E'\x81'; insert into travel.wed_flow (mood) values (E'\x81')},
	q{insert into travel.wed_attr (aname) values (E'\x81')}, q{insert into travel.wed_trig (trname, cpred) values (E'\x81', 'true')},
	q{select wed_sql.create_flow(E'\x81')})
{
	($ret, $out, $err) = $node->psql('western', $command);
	like($err, qr/has no equivalent in encoding "UTF8"/, "a character that followers cannot be told is refused: $command");
}
$node->safe_psql('western', q{insert into travel.wed_flow (a2) values (E'Gr\xf6\xdfe \x80')});
is(jobs($node, 'western'), '4 tr_a3', 'all others are taken');
is($node->safe_psql('western', q{select state ->> 'a2' = E'Gr\xf6\xdfe \x80' from travel.wed_trace where wid = 4}), 't', '... as they are');

is($node->safe_psql('postgres', q{select string_agg(distinct state || coalesce(last_error, ''), ' ') from wed_sql.status}), 'streaming', 'the engine has had no trouble');
is($node->safe_psql('postgres', 'select pg_postmaster_start_time()'), $started, 'nor has the server');

stop_clean($node);
done_testing();
