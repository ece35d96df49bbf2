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
