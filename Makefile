# wed_sql: a C module (ext/), a Go library that its worker loads (cgo/), the
# extension's SQL (sql/) and a command line (cmd/wedctl). `make help` says what
# there is to do.

# What needs no PostgreSQL to begin with, because it installs or finds it.
WORKFLOW = help deps check demo shell bench torture safeguards fuzz sanitize lint dist

GO = scripts/go
export PG_CONFIG

ifneq (,$(and $(filter $(WORKFLOW),$(MAKECMDGOALS)),$(filter-out $(WORKFLOW),$(MAKECMDGOALS))))

# Of both kinds: one after the other.
.NOTPARALLEL:
.PHONY: $(MAKECMDGOALS)
$(MAKECMDGOALS):
	@$(MAKE) --no-print-directory $@

else ifneq (,$(filter-out $(WORKFLOW),$(or $(MAKECMDGOALS),all)))

PG_CONFIG := $(shell scripts/pg-config)
ifeq (,$(PG_CONFIG))
$(error no pg_config with the headers of a server: run make deps, or name one by PG_CONFIG=)
endif

EXTENSION = wed_sql
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" wed_sql.control)

MODULE_big = wed_sql
OBJS = $(patsubst %.c,%.o,$(wildcard ext/*.c))
PG_CPPFLAGS = -DWED_SQL_VERSION='"$(EXTVERSION)"'
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers

# The extension's script: these files of sql/, in the order in which they build on each other.
SQL_FILES = prelude catalog functions definition worker flow event retry lease claim signal intervention operator alter_flow attributes settings purge sweep protection job_lock timeout statistics follower status
SQL = $(patsubst %,sql/%.sql,$(SQL_FILES))
DATA_built = wed_sql--$(EXTVERSION).sql
# From one release to the next; once released, they do not change any more.
DATA = $(wildcard sql/upgrades/wed_sql--*--*.sql)

ENGINE = build/wed_sql_engine.so
WEDCTL = build/wedctl
# All files, not only Go's: some are embedded.
GO_SOURCES := go.mod $(wildcard go.sum) $(shell find $(wildcard cgo cmd engine examples fold gateway internal metrics sweeper wal worker) -type f ! -name '*_test.go')

# regress/ holds what pg_regress and its like expect in the current directory.
REGRESS = $(patsubst regress/sql/%.sql,%,$(sort $(wildcard regress/sql/*.sql)))
REGRESS_OPTS = --inputdir=regress --outputdir=build/regress
ISOLATION = $(patsubst regress/specs/%.spec,%,$(sort $(wildcard regress/specs/*.spec)))
ISOLATION_OPTS = --inputdir=regress --outputdir=build/isolation
REGRESS_PREP = build/regress build/isolation

EXTRA_CLEAN = build

PGXS := $(shell $(PG_CONFIG) --pgxs)
# PostgreSQL may have been built with a clang that is not here: then without bitcode for inlining.
ifeq (,$(shell command -v $$(sed -n 's/^CLANG *= *//p' $(dir $(PGXS))../Makefile.global)))
override with_llvm = no
endif
include $(PGXS)

ifneq (,$(findstring musl,$(shell $(CC) -dumpmachine)))
$(error wed_sql needs glibc: a library written in Go cannot be loaded by a program on musl)
endif

all: $(ENGINE) $(WEDCTL)
installdirs: installdirs-engine
install: install-engine
uninstall: uninstall-engine

.PHONY: installdirs-engine install-engine uninstall-engine
installdirs-engine:
	$(MKDIR_P) '$(DESTDIR)$(pkglibdir)' '$(DESTDIR)$(bindir)'
install-engine: all installdirs-engine
	$(INSTALL_SHLIB) $(ENGINE) '$(DESTDIR)$(pkglibdir)/'
	$(INSTALL_PROGRAM) $(WEDCTL) '$(DESTDIR)$(bindir)/'
uninstall-engine:
	rm -f '$(DESTDIR)$(pkglibdir)/$(notdir $(ENGINE))' '$(DESTDIR)$(bindir)/$(notdir $(WEDCTL))'

# Objects that were built for one PostgreSQL are of no use to another.
BUILT_FOR = build/built-for
ifneq ($(VERSION),$(file <$(BUILT_FOR)))
.PHONY: $(BUILT_FOR)
endif
$(BUILT_FOR):
	$(MKDIR_P) $(@D)
	printf %s '$(VERSION)' >$@

$(OBJS): $(wildcard ext/*.h) Makefile wed_sql.control $(BUILT_FOR)

$(DATA_built): $(SQL) Makefile
ifneq (,$(filter-out $(SQL),$(wildcard sql/*.sql)))
	$(error not named in SQL_FILES: $(filter-out $(SQL),$(wildcard sql/*.sql)))
endif
	{ printf '%s\n' '\echo Use "CREATE EXTENSION wed_sql" to load this file. \quit' && cat /dev/null $(SQL); } >$@.tmp
	mv $@.tmp $@

# The header that cgo writes is for callers that link; the worker looks the one function up.
$(ENGINE): $(GO_SOURCES)
	CGO_ENABLED=1 CC='$(CC)' $(GO) build -trimpath -buildvcs=false -buildmode=c-shared -o $@ ./cgo
	rm -f $(ENGINE:.so=.h)

# The same with named points at which tests let it die (internal/faultpoint). It is not installed.
FAULTPOINT_ENGINE = build/faultpoint/$(notdir $(ENGINE))
$(FAULTPOINT_ENGINE): $(GO_SOURCES)
	$(MKDIR_P) $(@D)
	CGO_ENABLED=1 CC='$(CC)' $(GO) build -tags faultpoint -trimpath -buildvcs=false -buildmode=c-shared -o $@ ./cgo
	rm -f $(FAULTPOINT_ENGINE:.so=.h)

.PHONY: faultpoint
faultpoint: $(FAULTPOINT_ENGINE)

$(WEDCTL): $(GO_SOURCES)
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -o $@ ./cmd/wedctl

build/regress build/isolation:
	$(MKDIR_P) $@

.PHONY: lint-c print-%
lint-c:
	$(CC) $(CPPFLAGS) $(CFLAGS) -Werror -fsyntax-only $(OBJS:.o=.c)
print-%:
	@echo $($*)

else

.PHONY: $(WORKFLOW)
help:
	@sed -n 's/^#@ //p' Makefile
deps:
	@scripts/deps
check:
	@scripts/check
lint:
	@scripts/check lint
demo:
	@scripts/demo
shell:
	@scripts/shell
bench:
	@scripts/bench $(ARGS)
torture:
	@scripts/torture
safeguards:
	@scripts/safeguards
dist:
	@scripts/dist
fuzz:
	@scripts/fuzz
sanitize:
	@scripts/sanitize

endif

#@ make                 build the module, the engine's library and wedctl
#@ make install         install them             (PG_CONFIG=... and DESTDIR=... as usual)
#@ make uninstall       remove them again
#@ make installcheck    run the SQL and isolation tests in the running server that PGHOST and
#@                      PGPORT name; it must have been started with wed_sql preloaded
#@ make clean           remove everything that was built
#@
#@ make demo            dependencies, build, a private cluster, a real flow from start to final
#@ make shell           dependencies, build, a private cluster, and a shell in which psql and wedctl reach it
#@ make check           dependencies, build, every test    (one stage: scripts/check STAGE)
#@ make bench           dependencies, build, wed_sql beside other systems on this machine (ARGS=compare: is it still as fast?)
#@ make safeguards      take each safeguard out in turn, and see that the tests notice
#@ make torture         random flows under fire, and a judge        (options: scripts/torture --help)
#@ make fuzz            each fuzz test for half a minute     (longer: scripts/fuzz 10m)
#@ make sanitize        tests under AddressSanitizer and the race detector (one: scripts/sanitize asan)
#@ make lint            gofmt, go vet, staticcheck, and the C compiler's warnings as errors
#@ make dist            build/wed_sql-VERSION.tar.gz, which can be built without a network
#@ make deps            install what Debian has and this machine lacks; those above do it, too
