-- PUBLIC has nothing that it could harm with.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
select wed_sql.create_flow('shop');
-- what anybody may execute: locks are checked, sync waits, the rest tells only what the caller may do
select p.oid::regprocedure::text collate "C" as function from pg_proc p join pg_namespace n on n.oid = p.pronamespace
 where n.nspname = 'wed_sql' and has_function_privilege('public', p.oid, 'execute') order by 1;
-- what anybody may do with a table, a sequence or a schema
select c.oid::regclass, privilege from pg_class c join pg_namespace n on n.oid = c.relnamespace,
       unnest(array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger']) privilege
 where n.nspname in ('wed_sql', 'shop') and c.relkind in ('r', 'v') and has_table_privilege('public', c.oid, privilege) order by c.relname;
select c.oid::regclass from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname in ('wed_sql', 'shop') and case c.relkind when 'S' then has_sequence_privilege('public', c.oid, 'usage') end;
select nspname, has_schema_privilege('public', oid, 'usage') as usage, has_schema_privilege('public', oid, 'create') as create
  from pg_namespace where nspname in ('wed_sql', 'shop') order by 1;
-- what runs with more rights than its caller's looks at nobody's objects
select p.oid::regprocedure from pg_proc p join pg_namespace n on n.oid = p.pronamespace
 where n.nspname = 'wed_sql' and p.prosecdef and not 'search_path=pg_catalog, pg_temp' = any (coalesce(p.proconfig, '{}'));
-- (a procedure that commits cannot have settings: in wed_sql.purge each name has its schema)
select p.oid::regprocedure from pg_proc p join pg_namespace n on n.oid = p.pronamespace join pg_language l on l.oid = p.prolang
 where n.nspname = 'wed_sql' and l.lanname in ('sql', 'plpgsql') and p.prokind <> 'p' and not 'search_path=pg_catalog, pg_temp' = any (coalesce(p.proconfig, '{}'));
-- what monitoring may read
select c.oid::regclass::text collate "C" as relation from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = 'wed_sql' and c.relkind in ('r', 'v') and has_table_privilege('pg_monitor', c.oid, 'select') order by 1;
set role pg_monitor;
select count(*) > 0 from wed_sql.status;
select count(*) from wed_sql.job_lock;
reset role;
select wed_sql.drop_flow('shop');
