# PostgreSQL's official image, with wed_sql in it:
#
#     docker build --build-arg PG_MAJOR=17 --tag wed_sql .
#
# Both stages are of one release of Debian: the engine's library must not need a
# newer C library than the server's image has.
ARG PG_MAJOR=17
ARG GO=1.26
ARG DEBIAN=bookworm

FROM golang:${GO}-${DEBIAN} AS go

FROM postgres:${PG_MAJOR}-${DEBIAN} AS build
ARG PG_MAJOR
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates gcc libc6-dev make "postgresql-server-dev-${PG_MAJOR}"
COPY --from=go /usr/local/go /usr/local/go
WORKDIR /src
COPY . .
RUN make install DESTDIR=/install PG_CONFIG="/usr/lib/postgresql/${PG_MAJOR}/bin/pg_config"

FROM postgres:${PG_MAJOR}-${DEBIAN}
COPY --from=build /install /
CMD ["postgres", "-c", "shared_preload_libraries=wed_sql", "-c", "wal_level=logical"]
