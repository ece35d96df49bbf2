"""What a transition gets to know of its job, and may do in its transaction."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any, Callable, Dict, NamedTuple, Optional

from .driver import Connection


class Key(NamedTuple):
    """Identifies a pending job in its database."""

    flow: str
    wid: int
    tgid: int


class Transaction:
    """The transaction that completes a job. What is written in it commits
    together with the new state, or not at all."""

    def __init__(self, begin: Callable[[], Connection]) -> None:
        self._begin = begin

    def cursor(self) -> Any:
        """A cursor of the driver's own."""
        return self._begin().cursor()

    def execute(self, sql: str, parameters: Any = None) -> Any:
        """Runs a statement, and returns the cursor."""
        cursor = self.cursor()
        cursor.execute(sql, parameters)
        return cursor

    def _refuse(self) -> None:
        raise RuntimeError("the worker ends the job's transaction: return the new state, or None to abort it")

    def commit(self) -> None:
        self._refuse()

    def rollback(self) -> None:
        self._refuse()

    def close(self) -> None:
        self._refuse()


class Job:
    """One fired transition of one instance."""

    def __init__(self, key: Key, trname: str, *, version: int, state: str, fired_at: datetime, timeout: Optional[float],
                 attempts: int, last_error: Optional[str], deadline: Optional[float], lckid: Optional[str] = None) -> None:
        self.key = key
        self.trname = trname
        self.version = version        # number of the state that fired it
        self.state = state            # that state, as JSON
        self.fired_at = fired_at
        self.timeout = timeout        # of its rule, in seconds; None: no limit
        self.attempts = attempts      # that have failed
        self.last_error = last_error  # why the last one has
        self.deadline = deadline      # by time.monotonic(); None: no limit
        self.lckid = lckid            # token of the lease, if it is leased
        self.lost = False             # the lease has ended: nothing can be written any more
        self.wrote = False            # wed_trans() has used the job's transaction
        self._connection: Optional[Transaction] = None

    @property
    def flow(self) -> str:
        return self.key.flow

    @property
    def wid(self) -> int:
        return self.key.wid

    @property
    def tgid(self) -> int:
        return self.key.tgid

    @property
    def connection(self) -> Transaction:
        """The job's transaction, until wed_trans() returns. With a lease it begins
        with the first statement: keep it for the end of the work."""
        if self._connection is None:
            raise RuntimeError('the job is over')
        return self._connection

    def cursor(self) -> Any:
        """A cursor in the job's transaction."""
        return self.connection.cursor()

    def remaining(self) -> Optional[float]:
        """Seconds until the time is up (0: it is); None if there is no limit."""
        if self.lost:
            return 0.0
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def __repr__(self) -> str:
        return f'<Job {self.trname} of {self.flow}, wid {self.wid}, tgid {self.tgid}>'


class Payload(Dict[str, Any]):
    """The state that fired a job: its attributes by name. Others may have written
    the instance since: rely on what the rule's condition names."""

    def __init__(self, job: Job) -> None:
        super().__init__(json.loads(job.state))
        self.job = job
