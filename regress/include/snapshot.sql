-- Everything that the extension has in a database, and the tables of its flows, as sorted lines "kind|object|what":
-- two databases whose extension is the same, however it came to be so, have the same lines. Not in them: OIDs, rows,
-- and the extension's version.

set search_path = pg_catalog, pg_temp;

create function pg_temp.rights(acl aclitem[]) returns text language sql as $$
    select coalesce(string_agg(line, ', ' order by line collate "C"), 'nobody')
      from (select case when grantee = 0 then 'public' else grantee::regrole::text end
                   || '=' || string_agg(privilege_type || case when is_grantable then '*' else '' end, '+'
                                        order by privilege_type collate "C") as line
              from aclexplode(acl) group by grantee) lines
$$;

with schemas as (
    select 'wed_sql'::regnamespace::oid as oid
    union
    select relnamespace from pg_class where oid in (select wed_flow from wed_sql.flow)
),
members as (
    select d.classid, d.objid
      from pg_depend d join pg_extension e on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid
     where d.deptype = 'e' and e.extname = 'wed_sql'
),
relations as (
    select c.*, c.oid::regclass::text as name
      from pg_class c
     where c.relnamespace in (select oid from schemas)
        or (c.oid in (select objid from members where classid = 'pg_class'::regclass))
),
functions as (
    select p.*, p.oid::regprocedure::text as name
      from pg_proc p
     where p.pronamespace in (select oid from schemas)
        or p.oid in (select objid from members where classid = 'pg_proc'::regclass)
),
lines(kind, object, what) as (
    select 'extension', e.extname::text,
           concat_ws(', ', 'schema ' || e.extnamespace::regnamespace::text, 'relocatable ' || e.extrelocatable::text,
                     'owner ' || e.extowner::regrole::text)
      from pg_extension e where e.extname = 'wed_sql'
    union all
    select 'configuration', t.relation::regclass::text, t.condition
      from pg_extension e, unnest(e.extconfig, e.extcondition) t(relation, condition) where e.extname = 'wed_sql'
    union all
    select 'member', pg_describe_object(classid, objid, 0), '' from members
    union all
    select 'requires', r.extname::text, ''
      from pg_depend d
      join pg_extension e on d.classid = 'pg_extension'::regclass and d.objid = e.oid
      join pg_extension r on d.refclassid = 'pg_extension'::regclass and d.refobjid = r.oid
     where e.extname = 'wed_sql'
    union all
    select 'schema', n.nspname::text,
           concat_ws(', ', 'owner ' || n.nspowner::regrole::text,
                     'rights ' || pg_temp.rights(coalesce(n.nspacl, acldefault('n', n.nspowner))))
      from pg_namespace n where n.oid in (select oid from schemas)
    union all
    select 'relation', r.name,
           concat_ws(', ', 'kind ' || r.relkind::text, 'persistence ' || r.relpersistence::text, 'owner ' || r.relowner::regrole::text,
                     'options ' || array_to_string(array(select o from unnest(r.reloptions) o order by o collate "C"), ' '),
                     'replica identity ' || r.relreplident::text,
                     'row security ' || r.relrowsecurity::text || ' ' || r.relforcerowsecurity::text,
                     'rights ' || pg_temp.rights(coalesce(r.relacl, acldefault(case r.relkind when 'S' then 's' else 'r' end::"char", r.relowner))))
      from relations r where r.relkind not in ('i', 'I', 'c')
    union all
    select 'column', r.name || '.' || a.attname,
           concat_ws(', ', 'number ' || row_number() over (partition by a.attrelid order by a.attnum),
                     format_type(a.atttypid, a.atttypmod), 'not null ' || a.attnotnull::text, 'default ' || pg_get_expr(d.adbin, d.adrelid),
                     'identity ' || nullif(a.attidentity, '')::text, 'generated ' || nullif(a.attgenerated, '')::text,
                     'storage ' || a.attstorage::text, 'compression ' || nullif(a.attcompression, '')::text,
                     'statistics ' || nullif(a.attstattarget, -1)::text, 'collation ' || nullif(a.attcollation, 0)::regcollation::text,
                     'options ' || a.attoptions::text, 'rights ' || pg_temp.rights(a.attacl))
      from relations r
      join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
      left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
     where r.relkind not in ('i', 'I', 'S')
    union all
    select 'constraint', coalesce(nullif(c.conrelid, 0)::regclass::text, c.contypid::regtype::text) || '.' || c.conname,
           concat_ws(', ', pg_get_constraintdef(c.oid), 'validated ' || c.convalidated::text)
      from pg_constraint c where c.connamespace in (select oid from schemas)
    union all
    select 'index', i.indexrelid::regclass::text,
           concat_ws(', ', pg_get_indexdef(i.indexrelid), 'valid ' || i.indisvalid::text, 'clustered ' || i.indisclustered::text)
      from pg_index i join relations r on r.oid = i.indrelid
     where r.relnamespace in (select oid from schemas)
    union all
    select 'view', r.name, pg_get_viewdef(r.oid) from relations r where r.relkind in ('v', 'm')
    union all
    select 'rule', r.name || '.' || w.rulename, concat_ws(', ', 'enabled ' || w.ev_enabled::text, pg_get_ruledef(w.oid))
      from pg_rewrite w join relations r on r.oid = w.ev_class where w.rulename <> '_RETURN'
    union all
    select 'policy', r.name || '.' || p.polname,
           concat_ws(', ', p.polcmd, p.polpermissive, p.polroles::regrole[]::text,
                     pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
      from pg_policy p join relations r on r.oid = p.polrelid
    union all
    select 'trigger', r.name || '.' || t.tgname, concat_ws(', ', 'enabled ' || t.tgenabled::text, pg_get_triggerdef(t.oid))
      from pg_trigger t join relations r on r.oid = t.tgrelid where not t.tgisinternal
    union all
    select 'sequence', r.name,
           concat_ws(', ', s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle,
                     (select pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)
                        from pg_depend d
                       where d.classid = 'pg_class'::regclass and d.objid = s.seqrelid and d.deptype in ('a', 'i')))
      from pg_sequence s join relations r on r.oid = s.seqrelid
    union all
    select 'function', f.name,
           concat_ws(', ', 'owner ' || f.proowner::regrole::text, 'rights ' || pg_temp.rights(coalesce(f.proacl, acldefault('f', f.proowner))),
                     case when f.prokind <> 'a' then pg_get_functiondef(f.oid) end)
      from functions f
    union all
    select 'type', t.oid::regtype::text,
           concat_ws(', ', t.typtype, 'owner ' || t.typowner::regrole::text,
                     'rights ' || pg_temp.rights(coalesce(t.typacl, acldefault('T', t.typowner))),
                     format_type(nullif(t.typbasetype, 0), t.typtypmod), t.typnotnull, t.typdefault,
                     (select string_agg(e.enumlabel, ' ' order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid))
      from pg_type t where t.typnamespace in (select oid from schemas) and t.typelem = 0
    union all
    select 'event trigger', t.evtname::text,
           concat_ws(', ', t.evtevent, t.evtfoid::regprocedure, 'enabled ' || t.evtenabled::text, 'owner ' || t.evtowner::regrole::text,
                     (select string_agg(tag, ' ' order by tag collate "C") from unnest(t.evttags) tag))
      from pg_event_trigger t
     where t.oid in (select objid from members where classid = 'pg_event_trigger'::regclass)
    union all
    select 'publication', p.pubname::text,
           concat_ws(', ', 'owner ' || p.pubowner::regrole::text, (to_jsonb(p) - array['oid', 'pubowner'])::text)
      from pg_publication p
     where p.pubname = 'wed_sql' or p.oid in (select objid from members where classid = 'pg_publication'::regclass)
    union all
    select 'published', r.prrelid::regclass::text, (to_jsonb(r) - array['oid', 'prpubid', 'prrelid'])::text
      from pg_publication_rel r join pg_publication p on p.oid = r.prpubid where p.pubname = 'wed_sql'
    union all
    select 'default rights', d.defaclnamespace::regnamespace::text || ' ' || d.defaclobjtype::text, pg_temp.rights(d.defaclacl)
      from pg_default_acl d where d.defaclnamespace in (select oid from schemas)
    union all
    -- what pg_dump takes for granted
    select 'initial rights', pg_describe_object(i.classoid, i.objoid, i.objsubid), pg_temp.rights(i.initprivs)
      from pg_init_privs i join members m on m.classid = i.classoid and m.objid = i.objoid
    union all
    select 'comment', pg_describe_object(d.classoid, d.objoid, d.objsubid), d.description
      from pg_description d
     where (d.classoid, d.objoid) in (
               select 'pg_class'::regclass, oid from relations
               union all select 'pg_proc'::regclass, oid from functions
               union all select 'pg_namespace'::regclass, oid from schemas
               union all select classid, objid from members)
)
select concat_ws('|', kind, object, what) from lines order by concat_ws('|', kind, object, what) collate "C";
