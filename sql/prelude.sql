-- Before anything else: nobody's objects but PostgreSQL's are looked at while the extension is made, and nobody but a
-- superuser can have put something into its schema.

set local search_path = pg_catalog, pg_temp;

do $$
declare
    owner name;
    stranger text;
begin
    select pg_get_userbyid(nspowner) into owner
      from pg_namespace
     where nspname = 'wed_sql' and not exists (select from pg_roles where oid = nspowner and rolsuper);
    if found then
        raise exception 'schema "wed_sql" belongs to role "%", who is no superuser', owner
            using errcode = 'insufficient_privilege',
                  detail = 'Whoever owns the schema of an extension can put objects of his own in the place of its.',
                  hint = 'Look at what is in it and drop it (DROP SCHEMA wed_sql), or give it to a superuser.';
    end if;

    select string_agg(coalesce(pg_get_userbyid(nullif(a.grantee, 0)), 'PUBLIC'), ', ') into stranger
      from pg_namespace n, aclexplode(n.nspacl) a
     where n.nspname = 'wed_sql' and a.privilege_type = 'CREATE' and a.grantee <> n.nspowner;
    if stranger is not null then
        raise exception 'others than its owner may create objects in schema "wed_sql": %', stranger
            using errcode = 'insufficient_privilege', hint = 'REVOKE CREATE ON SCHEMA wed_sql FROM ' || stranger || '.';
    end if;

    select pg_describe_object(classid, objid, 0) into stranger
      from pg_depend
     where refclassid = 'pg_namespace'::regclass
       and refobjid = (select oid from pg_namespace where nspname = 'wed_sql')
       and classid <> 'pg_extension'::regclass
       and not exists (select from pg_depend m
                        where m.classid = pg_depend.classid and m.objid = pg_depend.objid and m.deptype = 'e')
     limit 1;
    if found then
        raise exception 'schema "wed_sql" is not empty: it has %', stranger
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Move or drop what is in it, and try again.';
    end if;
end
$$;
