"""BaseClass: a worker that performs one transition.

The thread of run() listens, reads the pool and extends leases, on one connection.
Other threads perform jobs, each on a connection of its own.
"""

from __future__ import annotations

import abc
import logging
import os
import selectors
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable, Dict, List, Optional

from . import protocol
from .driver import Connection, Driver, open_driver
from .hints import Hints, Outcome, backoff
from .job import Job, Key, Payload, Transaction

LOGGER = logging.getLogger('BaseWorker')


class WorkerError(Exception):
    """There is nothing to work for: no extension, no such flow, or no right to its transition."""


class Stopped(BaseException):
    """The worker is to end: raised in its own threads only."""


class Dialer:
    """Opens connections, one at a time: a server that is away is asked once, not
    once per connection."""

    def __init__(self, driver: Driver, dsn: str, application_name: str, stopping: threading.Event) -> None:
        self._driver = driver
        self._dsn = dsn
        self._application_name = application_name
        self._stopping = stopping
        self._turn = threading.Lock()

    def once(self, prepare: Callable[[Connection], None]) -> Connection:
        connection = self._driver.connect(self._dsn, self._application_name)
        try:
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def patiently(self, prepare: Callable[[Connection], None]) -> Connection:
        """Tries until it succeeds; Stopped if the worker is to end."""
        with self._turn:
            failures = 0
            while not self._stopping.is_set():
                try:
                    connection = self.once(prepare)
                except self._driver.error as error:
                    pause = backoff(0.1, 15, failures)
                    LOGGER.warning('could not connect, will try again in %.1f s: %s', pause, one_line(error))
                    failures += 1
                    self._stopping.wait(pause)
                else:
                    if failures:
                        LOGGER.info('connected again')
                    return connection
        raise Stopped


class Slot:
    """Where one thread keeps its connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection


class Scan:
    """Where the reading of the pool has got to."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self.due = 0.0                               # when to begin anew
        self.places: Dict[str, protocol.Place] = {}  # flows that have more to read

    def begin(self, flows: List[str]) -> None:
        self.due = time.monotonic() + self._interval
        self.places = {flow: protocol.FIRST for flow in flows}


class BaseClass(abc.ABC):
    """Performs the transition trname, in the database that dbs names.

    dbs              connection string as psycopg2 takes it; what it leaves out comes from PG* variables
    wakeup_interval  seconds after which the pool is read, if no notification has come
    flow             name of the flow; None: every flow of the database in which this role may perform the transition
    jobs             how many jobs may run side by side, each on a connection of its own and in a thread of its own
    lease            seconds: jobs are leased for so long (and the lease extended while they run), for work that
                     takes longer than a transaction should; None: each is performed in a transaction
    retry_after      seconds to wait after the first failure of a job, doubled with each further one, up to a minute
    driver           'psycopg2' or 'psycopg'; None: what is there
    """

    def __init__(self, trname: str, dbs: str, wakeup_interval: float = 5, *, flow: Optional[str] = None, jobs: int = 1,
                 lease: Optional[float] = None, retry_after: float = 0.5, driver: Optional[str] = None) -> None:
        if not trname:
            raise ValueError('trname is empty')
        if not wakeup_interval > 0:
            raise ValueError(f'wakeup_interval is {wakeup_interval}, not positive')
        if jobs < 1:
            raise ValueError(f'jobs is {jobs}, not at least 1')
        if lease is not None and not lease > 0:
            raise ValueError(f'lease is {lease}, not positive')
        if not retry_after > 0:
            raise ValueError(f'retry_after is {retry_after}, not positive')
        self.__trname = trname
        self.__flow = flow
        self.__jobs = jobs
        self.__lease = lease
        self.__driver = open_driver(driver)
        self.__stopping = threading.Event()
        self.__aborted = threading.Event()
        self.__dialer = Dialer(self.__driver, dbs, f'BaseWorker {trname}', self.__stopping)
        self.__wake_fd, self.__waker_fd = os.pipe()
        os.set_blocking(self.__wake_fd, False)
        os.set_blocking(self.__waker_fd, False)
        self.__scan = Scan(wakeup_interval)
        self.__hints = Hints(jobs, retry_after, self.__wake)
        self.__leases: Dict[Key, Job] = {}
        self.__leases_lock = threading.Lock()
        self.__connections: Dict[int, Connection] = {}
        self.__ended: List[int] = []  # threads
        self.__flows: List[str] = []  # those to serve, if none is named
        self.__flows_known_until = 0.0
        self.__current = threading.local()
        self.__signals: List[int] = []
        self.__fatal: Optional[BaseException] = None

    @abc.abstractmethod
    def wed_trans(self, payload: Payload) -> Optional[protocol.State]:
        """Performs the transition for the state that fired it. Returns the new state: a SET clause, or a dict of
        attributes and values (an empty one leaves them as they are). None aborts the transaction: the job is tried
        again later. An exception, too, and the failure is reported."""

    @property
    def job(self) -> Job:
        """The job that this thread performs; payload.job is the same."""
        job: Optional[Job] = getattr(self.__current, 'job', None)
        if job is None:
            raise RuntimeError('there is a job only in wed_trans()')
        return job

    def stop(self) -> None:
        """Has run() finish what is running, take nothing new, and return. From any thread."""
        self.__stopping.set()
        self.__wake()

    def run(self) -> None:
        """Performs jobs until SIGTERM, SIGINT or stop(); then finishes what is running. It returns after SIGTERM and
        stop(), and raises KeyboardInterrupt after SIGINT. A second signal ends it at once: what was running is rolled
        back, and pending again. A worker runs once."""
        handlers = self.__handle_signals()
        threads: List[threading.Thread] = []
        listener: Optional[Connection] = None
        try:
            listener = self.__dialer.once(self.__prepare_listener)
            self.__check(listener)
            LOGGER.info('worker for %s started, with %s', self.__trname, self.__driver.name)
            threads = [threading.Thread(target=self.__perform_jobs, name=f'{self.__trname} {n}', daemon=True)
                       for n in range(self.__jobs)]
            for thread in threads:
                thread.start()
            listener = self.__serve(listener, threads)
            if self.__aborted.is_set():
                self.__abort(listener)
        finally:
            self.__stopping.set()
            self.__hints.stop()
            if listener is not None:
                listener.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if self.__fatal is not None:
            raise self.__fatal
        LOGGER.info('worker for %s stopped', self.__trname)
        if signal.SIGINT in self.__signals:
            raise KeyboardInterrupt
        if self.__aborted.is_set():
            raise SystemExit(128 + self.__signals[-1])

    # What the thread of run() does.

    def __handle_signals(self) -> Dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}

        def handle(number: int, _frame: Any) -> None:
            self.__signals.append(number)
            if len(self.__signals) > 1:
                self.__aborted.set()
            self.stop()

        return {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}

    def __wake(self) -> None:
        try:
            os.write(self.__waker_fd, b'.')
        except BlockingIOError:
            pass  # it will wake up anyway

    def __prepare_listener(self, connection: Connection) -> None:
        protocol.prepare_listener(connection, self.__trname)

    def __check(self, connection: Connection) -> None:
        """Finds out, before anything starts, whether there is something to work for."""
        if not protocol.has_extension(connection):
            raise WorkerError('the extension wed_sql is not installed in this database')
        flows = self.__look_for_flows(connection)
        if self.__flow is None:
            if not any(protocol.knows(connection, flow, self.__trname) for flow in flows):
                LOGGER.warning('no flow of this database has a transition %s that this role may perform; waiting for one',
                               self.__trname)
        elif self.__flow not in flows:
            raise WorkerError(f'there is no flow {self.__flow}, or this role may not perform {self.__trname} in it: '
                              'see wed_sql.grant_worker')
        elif not protocol.knows(connection, self.__flow, self.__trname):
            raise WorkerError(f'no rule of flow {self.__flow} fires {self.__trname}')

    def __serve(self, listener: Connection, threads: List[threading.Thread]) -> Connection:
        """Listens, scans and extends leases until all threads have ended. Returns the
        connection that it has then."""
        failures = 0
        while not self.__aborted.is_set():
            if self.__stopping.is_set():
                self.__hints.stop()
                if len(self.__ended) == len(threads):
                    break
            try:
                if listener.lost:
                    if failures:  # it connects, and breaks at once
                        self.__wait(None, backoff(0.1, 15, failures))
                    listener = self.__dialer.once(self.__prepare_listener)
                    self.__scan.due = 0  # for what was fired in the meantime
                self.__look(listener)
                failures = 0
            except self.__driver.error as error:
                failures += 1
                if listener.lost:
                    LOGGER.warning('lost the notifications, will listen again: %s', one_line(error))
                else:
                    LOGGER.error('could not read the job pool: %s', one_line(error))
                    self.__wait(None, backoff(0.1, 15, failures))
        return listener

    def __look(self, listener: Connection) -> None:
        """Does what is due on the listening connection, and waits for what comes."""
        self.__extend_leases(listener)
        draining = self.__stopping.is_set()
        if not draining:
            self.__read_pool(listener)
        for payload in listener.notifications():
            key = protocol.parse_notification(payload)
            if key is not None and not draining:
                self.__notified(listener, key)
        self.__wait(listener, self.__until_next())
        for payload in listener.notifications():
            key = protocol.parse_notification(payload)
            if key is not None and not self.__stopping.is_set():
                self.__notified(listener, key)

    def __notified(self, listener: Connection, key: Key) -> None:
        if self.__flow is None:
            # Anybody may name a schema in a notification. What is no flow is not touched; what is too new to be known
            # is looked up, but not as often as somebody likes.
            if key.flow not in self.__flows and time.monotonic() >= self.__flows_known_until:
                self.__look_for_flows(listener)
            if key.flow not in self.__flows:
                return
        elif key.flow != self.__flow:
            return
        self.__hints.notified(key)

    def __look_for_flows(self, connection: Connection) -> List[str]:
        attempts = 10
        while True:
            try:
                self.__flows = protocol.flows(connection, self.__trname)
                break
            except self.__driver.error as error:
                # one of them was dropped while they were looked at
                attempts -= 1
                if attempts == 0 or self.__driver.sqlstate(error) not in protocol.DROPPED:
                    raise
        self.__flows_known_until = time.monotonic() + 1
        return self.__flows

    def __read_pool(self, listener: Connection) -> None:
        if self.__hints.take_overflown():
            self.__scan.due = 0
        if time.monotonic() >= self.__scan.due and self.__hints.is_low():
            if self.__flow is None:
                self.__look_for_flows(listener)
            self.__scan.begin(self.__flows if self.__flow is None else [self.__flow])
        for flow, place in list(self.__scan.places.items()):
            if not self.__hints.is_low():
                break
            try:
                found, after = protocol.page(listener, flow, self.__trname, place)
            except self.__driver.error as error:
                if listener.lost:
                    raise
                if self.__driver.sqlstate(error) in protocol.MISSING:
                    self.__refuse_if_gone(listener, flow)
                # The next scan looks again; other flows are not held up.
                LOGGER.warning('could not read the jobs of flow %s: %s', flow, one_line(error))
                found, after = [], None
            self.__hints.found(found)
            if after is None:
                del self.__scan.places[flow]
            else:
                self.__scan.places[flow] = after

    def __refuse_if_gone(self, listener: Connection, flow: str) -> None:
        """Ends a worker that was told to serve a flow which is not there any more."""
        if flow == self.__flow and flow not in protocol.flows(listener, self.__trname):
            raise WorkerError(f'flow {flow} is gone')

    def __until_next(self) -> float:
        if self.__stopping.is_set():
            wait = 1.0
        elif self.__scan.places and self.__hints.is_low():
            wait = 0.0
        else:
            wait = self.__scan.due - time.monotonic()
            if wait <= 0 and not self.__hints.is_low():
                wait = 60.0  # the hints wake us
        with self.__leases_lock:
            for job in self.__leases.values():
                wait = min(wait, self.__beat_in(job))
        return max(wait, 0.0)

    def __wait(self, listener: Optional[Connection], seconds: float) -> None:
        """Waits for a notification, a wake-up, or so long."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.__wake_fd, selectors.EVENT_READ)
            if listener is not None:
                selector.register(listener.fileno(), selectors.EVENT_READ)
            selector.select(seconds)
        try:
            while os.read(self.__wake_fd, 4096):
                pass
        except BlockingIOError:
            pass

    def __beat_in(self, job: Job) -> float:
        """Seconds until the lease is to be extended: when a third of it has passed."""
        assert self.__lease is not None and job.deadline is not None
        return job.deadline - self.__lease * 2 / 3 - time.monotonic()

    def __extend_leases(self, listener: Connection) -> None:
        if self.__lease is None:
            return
        with self.__leases_lock:
            due = [job for job in self.__leases.values() if self.__beat_in(job) <= 0]
        for job in due:
            try:
                protocol.extend(listener, job, self.__lease)
            except self.__driver.error as error:
                if not self.__driver.sqlstate(error).startswith(('WED', '42')):
                    raise
                with self.__leases_lock:
                    if self.__leases.pop(job.key, None) is job:  # else it was completed meanwhile
                        job.lost = True
                        LOGGER.warning('%r: the lease has ended: %s', job, one_line(error))

    def __abort(self, listener: Connection) -> None:
        """Ends what the threads do in the server. They are not waited for."""
        for connection in list(self.__connections.values()):
            try:
                connection.cancel()
            except self.__driver.error:
                pass
        with self.__leases_lock:
            leased = list(self.__leases.values())
        for job in leased:
            try:
                protocol.release(listener, job)
            except self.__driver.error as error:
                LOGGER.warning('%r: not given back, until its lease runs out: %s', job, one_line(error))

    # What the other threads do.

    def __perform_jobs(self) -> None:
        slot: Optional[Slot] = None
        # Where other processes are quicker, more jobs are tried at once.
        tries = 1
        try:
            while True:
                keys = self.__hints.take(tries if self.__lease is None else 1)
                if keys is None:
                    break
                if slot is None:
                    slot = Slot(self.__connect())
                elif slot.connection.lost:
                    slot.connection = self.__connect()
                found = self.__take(slot, keys)
                tries = max(tries // 2, 1) if found else min(tries * 4, protocol.TRIES)
        except Stopped:
            pass
        except BaseException as error:
            LOGGER.exception('a thread has ended')
            self.__fatal = error
            self.stop()
        finally:
            self.__connections.pop(threading.get_ident(), None)
            if slot is not None:
                slot.connection.close()
            self.__ended.append(threading.get_ident())
            self.__wake()

    def __connect(self) -> Connection:
        connection = self.__dialer.patiently(protocol.prepare)
        self.__connections[threading.get_ident()] = connection
        return connection

    def __take(self, slot: Slot, keys: List[Key]) -> bool:
        """Claims one of the jobs, and performs it. Whether there was one to claim."""
        connection = slot.connection
        try:
            job = self.__claim(connection, keys)
        except self.__driver.error as error:
            if connection.lost:
                LOGGER.warning('lost the connection: %s', one_line(error))
                self.__hints.done(Outcome.SOON, *keys)
            else:
                state = self.__driver.sqlstate(error)
                outcome = Outcome.GONE if state in protocol.MISSING else protocol.OUTCOMES.get(state, Outcome.FAILED)
                if outcome is Outcome.FAILED:
                    LOGGER.error('could not take a job: %s', one_line(error))
                self.__roll_back(connection)
                self.__hints.done(outcome, *keys)
            return False
        if job is None:
            self.__hints.done(Outcome.GONE, *keys)
            return False
        # The jobs before it are gone or locked; the ones after it were not tried.
        i = keys.index(job.key)
        self.__hints.done(Outcome.GONE, *keys[:i])
        self.__hints.give_back(keys[i + 1:])
        self.__hints.done(self.__perform(slot, job), job.key)
        return True

    def __claim(self, connection: Connection, keys: List[Key]) -> Optional[Job]:
        if self.__lease is None:
            return protocol.lock(connection, self.__trname, keys)
        job = protocol.lease(connection, keys[0], self.__trname, self.__lease)
        if job is not None:
            with self.__leases_lock:
                self.__leases[job.key] = job
            self.__wake()  # for its heartbeat
        return job

    def __perform(self, slot: Slot, job: Job) -> Outcome:
        begun = time.monotonic()
        error: Optional[Exception] = None
        try:
            outcome = self.__transition(slot, job)
        except Exception as e:  # whatever wed_trans() raises is the job's failure
            error = e
            outcome = self.__judge(slot.connection, job, e)
        finally:
            self.__current.job = None
            job._connection = None
        connection = slot.connection
        if outcome is not Outcome.COMPLETED:
            self.__roll_back(connection)
        if job.lckid is not None:
            with self.__leases_lock:
                self.__leases.pop(job.key, None)
        if outcome is Outcome.COMPLETED:
            LOGGER.debug('%r: done in %.3f s', job, time.monotonic() - begun)
        elif outcome is Outcome.FAILED and error is not None and not connection.lost and not self.__aborted.is_set():
            outcome = self.__report(connection, job, error)
        elif job.lckid is not None and outcome in (Outcome.ABORTED, Outcome.SOON) and not connection.lost:
            outcome = self.__give_back(connection, job, outcome)
        return outcome

    def __transition(self, slot: Slot, job: Job) -> Outcome:
        payload = Payload(job)
        connection = slot.connection
        job._connection = Transaction(lambda: self.__begin_writing(slot, job))
        self.__current.job = job
        state = self.wed_trans(payload)
        job._connection = None
        if state is None or state == '':
            LOGGER.info('%r: aborted, no state returned', job)
            return Outcome.ABORTED
        if not isinstance(state, (str, Mapping)):
            raise TypeError(f'wed_trans() has returned a {type(state).__name__}, not a SET clause, a dict or None')
        if job.lckid is None:
            if not connection.in_transaction:
                raise RuntimeError("the job's transaction has ended before wed_trans() has")
            self.__check_time(job)
            protocol.write(connection, job, state)
            self.__check_time(job)
            connection.execute('commit')
        else:
            self.__complete(slot, job, state)
        return Outcome.COMPLETED

    def __begin(self, slot: Slot, job: Job) -> None:
        """Begins a leased job's transaction. That the connection was lost during the work is noticed only now."""
        if job.lckid is None or slot.connection.in_transaction:
            return
        begin = 'begin isolation level read committed read write'
        try:
            slot.connection.execute(begin)
        except self.__driver.error:
            if job.wrote or not slot.connection.lost:
                raise
            self.__connect_again(slot, job)
            slot.connection.execute(begin)

    def __begin_writing(self, slot: Slot, job: Job) -> Connection:
        if not job.wrote:
            self.__begin(slot, job)
            job.wrote = True
        return slot.connection

    def __connect_again(self, slot: Slot, job: Job) -> None:
        """Opens a connection for work that is done, also while the worker ends: for as long as the lease lasts."""
        failures = 0
        while True:
            try:
                slot.connection = self.__dialer.once(protocol.prepare)
            except self.__driver.error as error:
                if self.__aborted.is_set() or job.remaining() == 0.0:
                    raise
                pause = backoff(0.1, 15, failures)
                LOGGER.warning('%r: could not connect, will try again in %.1f s: %s', job, pause, one_line(error))
                self.__aborted.wait(pause)
                failures += 1
            else:
                self.__connections[threading.get_ident()] = slot.connection
                return

    def __check_time(self, job: Job) -> None:
        if self.__aborted.is_set():
            raise RuntimeError('the worker was aborted')
        if job.remaining() == 0.0:
            raise TimeoutError("the job's time is up")

    def __complete(self, slot: Slot, job: Job, state: protocol.State) -> None:
        """Completes a leased job. What lost a race or the connection is tried again,
        unless wed_trans() has written something that is gone by then."""
        attempt = 0
        while True:
            if self.__aborted.is_set():
                raise RuntimeError('the worker was aborted')
            try:
                self.__begin(slot, job)
                protocol.complete(slot.connection, job, state)
                slot.connection.execute('commit')
                return
            except self.__driver.error as error:
                soon = slot.connection.lost or protocol.OUTCOMES.get(self.__driver.sqlstate(error)) is Outcome.SOON
                if job.wrote or job.lost or attempt == 8 or not soon:
                    raise
            self.__roll_back(slot.connection)
            time.sleep(backoff(0.02, 1, attempt))
            attempt += 1

    def __judge(self, connection: Connection, job: Job, error: Exception) -> Outcome:
        if self.__aborted.is_set():
            return Outcome.SOON
        state = self.__driver.sqlstate(error) if isinstance(error, self.__driver.error) else ''
        if connection.lost and not isinstance(error, TimeoutError):
            # It may have been committed. If so, it is not found again.
            LOGGER.warning('%r: lost the connection, will look at it again: %s', job, one_line(error))
            return Outcome.SOON
        outcome = protocol.OUTCOMES.get(state, Outcome.FAILED)
        if outcome is Outcome.GONE:
            LOGGER.info('%r: not to be had any more: %s', job, one_line(error))
        elif outcome is Outcome.SOON:
            LOGGER.debug('%r: lost a race, will redo it: %s', job, one_line(error))
        else:
            LOGGER.error('%r: rolled back: %s', job, one_line(error), exc_info=not isinstance(error, self.__driver.error))
        return outcome

    def __report(self, connection: Connection, job: Job, error: Exception) -> Outcome:
        try:
            if protocol.fail(connection, job, f'{type(error).__name__}: {error}'):
                return Outcome.REPORTED
        except self.__driver.error as e:
            LOGGER.warning('%r: the failure is not counted: %s', job, one_line(e))
        return Outcome.FAILED

    def __give_back(self, connection: Connection, job: Job, outcome: Outcome) -> Outcome:
        try:
            protocol.release(connection, job)
        except self.__driver.error as e:
            LOGGER.warning('%r: not given back, until its lease runs out: %s', job, one_line(e))
        return Outcome.REPORTED if outcome is Outcome.ABORTED else outcome

    def __roll_back(self, connection: Connection) -> None:
        """A connection that cannot even do that is closed."""
        if connection.lost or not connection.in_transaction:
            return
        try:
            connection.execute('rollback')
        except self.__driver.error:
            connection.close()


def one_line(error: BaseException) -> str:
    return ' '.join(str(error).split()) or type(error).__name__
