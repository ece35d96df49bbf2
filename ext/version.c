/*-------------------------------------------------------------------------
 *
 * version.c
 *		Whether the module and the extension of a database are of one make.
 *
 * The module is replaced for the whole server at its restart, the extension in
 * each database by ALTER EXTENSION UPDATE. In between, flows go on, unless the
 * catalogs have another shape than the module knows.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_extension.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(wed_check_version);
PG_FUNCTION_INFO_V1(wed_module_version);

/* The extension's version in this database, or "" if there is none. */
static char *
extension_version(void)
{
	Relation	catalog = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *version = pstrdup("");

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("wed_sql"));
	scan = systable_beginscan(catalog, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;

		version = TextDatumGetCString(heap_getattr(tuple, Anum_pg_extension_extversion,
												   RelationGetDescr(catalog), &isnull));
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return version;
}

static bool
is_older(const char *version, const char *than)
{
	int			a[3] = {0};
	int			b[3] = {0};

	(void) sscanf(version, "%d.%d.%d", &a[0], &a[1], &a[2]);
	(void) sscanf(than, "%d.%d.%d", &b[0], &b[1], &b[2]);
	for (int i = 0; i < lengthof(a); i++)
	{
		if (a[i] != b[i])
			return a[i] < b[i];
	}
	return false;
}

static void
report_version(int elevel, const char *version)
{
	ereport(elevel,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("extension \"wed_sql\" has version %s in this database, but the server has loaded version %s of its module",
					version, WED_SQL_VERSION),
			 is_older(version, WED_SQL_VERSION) ?
			 errhint("Execute ALTER EXTENSION wed_sql UPDATE in this database.") :
			 errhint("Install wed_sql %s for this server, and restart it.", version)));
}

/*
 * An error if a catalog of the extension has not the columns that the module
 * was made for: it would read it wrongly, or worse.
 */
void
wed_check_catalog(Relation catalog, int natts)
{
	if (RelationGetDescr(catalog)->natts == natts)
		return;
	if (strcmp(extension_version(), WED_SQL_VERSION) != 0)
		report_version(ERROR, extension_version());
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s.%s\" has %d columns instead of %d",
					WED_SCHEMA, RelationGetRelationName(catalog), RelationGetDescr(catalog)->natts, natts),
			 errhint("It is not as extension wed_sql made it.")));
}

/*
 * wed_sql.check_version() -> void: a warning if the extension of this database
 * is of another version than the module.
 */
Datum
wed_check_version(PG_FUNCTION_ARGS)
{
	char	   *version = extension_version();

	if (strcmp(version, WED_SQL_VERSION) != 0)
		report_version(WARNING, version);
	PG_RETURN_VOID();
}

/* wed_sql.module_version() -> text */
Datum
wed_module_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(WED_SQL_VERSION));
}
