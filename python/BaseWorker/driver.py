"""The little that differs between psycopg2 and psycopg 3.

Connections are in autocommit mode: transactions begin and end where the
protocol says so, by statements of their own.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

Row = Tuple[Any, ...]

# Added to what the connection string does not say: a server that is away is
# noticed, not waited for.
CONNECT_DEFAULTS = {
    'connect_timeout': '5',
    'keepalives_idle': '30',
    'keepalives_interval': '10',
    'keepalives_count': '3',
    'tcp_user_timeout': '60000',
}


class Connection(Protocol):
    """One connection to the server, to be used by one thread at a time."""

    raw: Any
    rowcount: int

    def execute(self, sql: str) -> List[Row]:
        """Runs statements, and returns the rows of the last one."""

    def cursor(self) -> Any:
        """A cursor of the driver's own."""

    def text(self, value: str) -> str:
        """A literal."""

    def name(self, *parts: str) -> str:
        """A quoted identifier."""

    def notifications(self) -> List[str]:
        """The payloads that have arrived."""

    def fileno(self) -> int: ...

    def cancel(self) -> None:
        """Ends what the server is doing; from any thread."""

    def close(self) -> None: ...

    @property
    def lost(self) -> bool: ...

    @property
    def in_transaction(self) -> bool: ...


class Driver(Protocol):
    """A database driver."""

    name: str
    error: type[Exception]

    def connect(self, dsn: str, application_name: str) -> Connection: ...

    def sqlstate(self, error: BaseException) -> str:
        """The SQLSTATE of an error, or ''."""


def quote_name(parts: Sequence[str]) -> str:
    return '.'.join('"' + part.replace('"', '""') + '"' for part in parts)


class RawConnection:
    """What a connection of either driver can do."""

    raw: Any

    def cursor(self) -> Any:
        return self.raw.cursor()

    def name(self, *parts: str) -> str:
        return quote_name(parts)

    def fileno(self) -> int:
        fd: int = self.raw.fileno()
        return fd

    def cancel(self) -> None:
        self.raw.cancel()

    def close(self) -> None:
        self.raw.close()

    @property
    def lost(self) -> bool:
        return bool(self.raw.closed)


class Psycopg2Connection(RawConnection):
    def __init__(self, module: Any, dsn: str) -> None:
        self._extensions = module.extensions
        self.raw = module.connect(dsn)
        self.raw.autocommit = True
        self.raw.set_client_encoding('UTF8')
        self.rowcount = -1

    def execute(self, sql: str) -> List[Row]:
        with self.raw.cursor() as cursor:
            cursor.execute(sql)
            self.rowcount = cursor.rowcount
            return list(cursor.fetchall()) if cursor.description else []

    def text(self, value: str) -> str:
        quoted = self._extensions.adapt(value)
        quoted.prepare(self.raw)
        literal: str = quoted.getquoted().decode('utf-8')
        return literal

    def notifications(self) -> List[str]:
        try:
            self.raw.poll()
        except Exception:
            self.raw.close()  # it does not say so by itself
            raise
        arrived = [n.payload for n in self.raw.notifies]
        self.raw.notifies.clear()
        return arrived

    @property
    def in_transaction(self) -> bool:
        status: int = self.raw.info.transaction_status
        return status in (self._extensions.TRANSACTION_STATUS_INTRANS, self._extensions.TRANSACTION_STATUS_INERROR)


class Psycopg2:
    name = 'psycopg2'

    def __init__(self) -> None:
        self._module = importlib.import_module('psycopg2')
        importlib.import_module('psycopg2.extensions')
        self.error: type[Exception] = self._module.Error

    def connect(self, dsn: str, application_name: str) -> Connection:
        extensions = self._module.extensions
        return Psycopg2Connection(self._module, complete_dsn(extensions.parse_dsn, extensions.make_dsn, dsn, application_name))

    def sqlstate(self, error: BaseException) -> str:
        return getattr(error, 'pgcode', None) or ''


class Psycopg3Connection(RawConnection):
    def __init__(self, module: Any, dsn: str) -> None:
        self._sql = importlib.import_module('psycopg.sql')
        self._status = importlib.import_module('psycopg.pq').TransactionStatus
        self.raw = module.connect(dsn, autocommit=True, prepare_threshold=None)
        self.raw.execute("set client_encoding = 'UTF8'")
        self._arrived: List[str] = []
        self.raw.add_notify_handler(lambda n: self._arrived.append(n.payload))
        self.rowcount = -1

    def execute(self, sql: str) -> List[Row]:
        with self.raw.cursor() as cursor:
            cursor.execute(sql)
            while cursor.nextset():
                pass
            self.rowcount = cursor.rowcount
            return list(cursor.fetchall()) if cursor.description else []

    def text(self, value: str) -> str:
        literal: str = self._sql.Literal(value).as_string(self.raw)
        return literal.strip()

    def notifications(self) -> List[str]:
        # What came with the results of statements was given to the handler.
        self.raw.pgconn.consume_input()
        arrived, self._arrived = self._arrived, []
        while True:
            notify = self.raw.pgconn.notifies()
            if notify is None:
                return arrived
            arrived.append(notify.extra.decode('utf-8', 'replace'))

    @property
    def in_transaction(self) -> bool:
        status = self.raw.pgconn.transaction_status
        return status in (self._status.INTRANS, self._status.INERROR)


class Psycopg3:
    name = 'psycopg'

    def __init__(self) -> None:
        self._module = importlib.import_module('psycopg')
        self.error: type[Exception] = self._module.Error

    def connect(self, dsn: str, application_name: str) -> Connection:
        conninfo = importlib.import_module('psycopg.conninfo')
        return Psycopg3Connection(
            self._module, complete_dsn(conninfo.conninfo_to_dict, conninfo.make_conninfo, dsn, application_name))

    def sqlstate(self, error: BaseException) -> str:
        return getattr(error, 'sqlstate', None) or ''


def complete_dsn(parse: Any, make: Any, dsn: str, application_name: str) -> str:
    """The connection string with the defaults in it that it leaves out."""
    settings = {'fallback_application_name': application_name, **CONNECT_DEFAULTS}
    settings.update(parse(dsn))
    completed: str = make('', **settings)
    return completed


def open_driver(name: Optional[str] = None) -> Driver:
    """The driver of that name, else psycopg2, else psycopg 3."""
    drivers: Dict[str, Callable[[], Driver]] = {Psycopg2.name: Psycopg2, Psycopg3.name: Psycopg3}
    if name is not None and name not in drivers:
        raise ValueError(f'no driver {name!r}; there are psycopg2 and psycopg')
    missing = []
    for candidate in [name] if name is not None else list(drivers):
        try:
            return drivers[candidate]()
        except ImportError as error:
            missing.append(str(error))
    raise ImportError('BaseWorker needs psycopg2 or psycopg 3 (Debian: python3-psycopg2): ' + '; '.join(missing))
