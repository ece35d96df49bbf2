"""Which jobs are worth trying, and when.

Hints only: what is really pending is decided by the server, when a job is claimed.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import random
import threading
import time
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from .job import Key

LOW = 100    # with fewer hints than that, the next page of the pool is read
MOST = 4096  # notified jobs that are remembered; the pool keeps the others


class Outcome(enum.Enum):
    """What became of a job that was tried."""

    COMPLETED = 'completed'
    GONE = 'gone'            # completed, or being worked on, by somebody else
    SOON = 'soon'            # lost a race: to be redone in a moment
    ABORTED = 'aborted'      # wed_trans() did not want it now
    FAILED = 'failed'        # and the server does not know
    REPORTED = 'reported'    # failed or given back, and the server announces it again


class Found(NamedTuple):
    key: Key
    priority: int


class Entry:
    __slots__ = ('phase', 'failures', 'again', 'quiet_until', 'due')

    def __init__(self) -> None:
        self.phase = 'ready'      # ready, taken or delayed
        self.failures = 0
        self.again = False        # notified while taken: it may have been fired anew
        self.quiet_until = 0.0    # notifications until then are of our own making
        self.due = 0.0            # when it is delayed: until then


def backoff(first: float, limit: float, failures: int) -> float:
    """Twice as long after each failure, up to a limit, and never quite the same."""
    pause = min(first * float(2 ** min(failures, 20)), limit)
    return pause * (0.5 + random.random() / 2)


class Hints:
    def __init__(self, threads: int, retry_after: float, when_low: Callable[[], None]) -> None:
        self._threads = threads
        self._retry_after = retry_after
        self._when_low = when_low
        self._changed = threading.Condition()
        self._known: Dict[Key, Entry] = {}
        self._ready: List[Tuple[int, int, Key]] = []
        self._delayed: List[Tuple[float, int, Key]] = []
        self._back = itertools.count()
        self._front = itertools.count(-1, -1)
        # A notification does not tell a job's priority, but jobs of one rule have the same.
        self._priority: Dict[int, int] = {}
        self._stopped = False
        self._overflown = False

    def notified(self, key: Key) -> None:
        """The server has just announced a job."""
        with self._changed:
            entry = self._known.get(key)
            if entry is None:
                if len(self._ready) >= MOST:
                    self._overflown = True
                else:
                    self._add(key)
            elif entry.phase == 'taken':
                entry.again = True
            elif entry.phase == 'delayed' and time.monotonic() >= entry.quiet_until:
                entry.phase, entry.failures = 'ready', 0
                self._push(key, next(self._back))

    def found(self, jobs: Iterable[Found]) -> None:
        """A page of the pool. Workers in other processes read the same one: in
        different orders, as far as jobs are equally urgent, they meet less often."""
        page = list(jobs)
        random.shuffle(page)
        with self._changed:
            for job in page:
                self._priority[job.key.tgid] = job.priority
            for job in page:
                if job.key not in self._known:
                    self._add(job.key)

    def _add(self, key: Key) -> None:
        self._known[key] = Entry()
        self._push(key, next(self._back))

    def _push(self, key: Key, turn: int) -> None:
        heapq.heappush(self._ready, (-self._priority.get(key.tgid, 0), turn, key))
        self._changed.notify()

    def is_low(self) -> bool:
        return len(self._ready) < LOW

    def take_overflown(self) -> bool:
        """Whether notified jobs were left to the pool since the last call."""
        with self._changed:
            overflown, self._overflown = self._overflown, False
            return overflown

    def take(self, most: int) -> Optional[List[Key]]:
        """Waits for jobs to try: of one flow, and not those that other threads
        wait for. None when there is nothing more to do here."""
        with self._changed:
            while not self._stopped:
                wait = self._release(time.monotonic())
                if self._ready:
                    keys = self._pop(min(most, 1 + len(self._ready) // (2 * self._threads)))
                    if self.is_low():
                        self._when_low()
                    return keys
                self._changed.wait(wait)
            return None

    def _pop(self, most: int) -> List[Key]:
        keys: List[Key] = []
        while self._ready and len(keys) < most and (not keys or self._ready[0][2].flow == keys[0].flow):
            key = heapq.heappop(self._ready)[2]
            self._known[key].phase = 'taken'
            keys.append(key)
        return keys

    def _release(self, now: float) -> Optional[float]:
        """Makes those ready whose time has come; returns how long the next one waits."""
        while self._delayed:
            due, _, key = self._delayed[0]
            entry = self._known.get(key)
            if entry is not None and entry.phase == 'delayed' and entry.due == due:
                if due > now:
                    return due - now
                entry.phase = 'ready'
                self._push(key, next(self._back))
            heapq.heappop(self._delayed)  # else it was announced in the meantime
        return None

    def give_back(self, keys: Iterable[Key]) -> None:
        """Returns jobs untried, to the front."""
        with self._changed:
            for key in reversed(list(keys)):
                self._known[key].phase = 'ready'
                self._push(key, next(self._front))

    def done(self, outcome: Outcome, *keys: Key) -> None:
        """Says what became of jobs that were taken."""
        with self._changed:
            for key in keys:
                entry = self._known[key]
                if outcome in (Outcome.COMPLETED, Outcome.GONE):
                    del self._known[key]
                    if entry.again:
                        self._add(key)
                    continue
                now = time.monotonic()
                if outcome is Outcome.SOON:
                    pause = backoff(0.01, 1, entry.failures)
                else:
                    pause = backoff(self._retry_after, max(60, self._retry_after), entry.failures)
                if outcome is Outcome.REPORTED:
                    entry.quiet_until = now + pause / 2
                entry.failures += 1
                entry.phase, entry.again = 'delayed', False
                entry.due = now + pause
                heapq.heappush(self._delayed, (entry.due, next(self._back), key))
                self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
