"""What the tests of the workers share: a database, flows, and workers as processes.

They run where python/, examples/ and regress/ lie beside each other, against the server that PGHOST and the like name.
"""

import concurrent.futures
import importlib.util
import os
import shlex
import signal
import subprocess
import threading
import time
import traceback
import unittest

import psycopg2
import psycopg2.errors

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
PYTHON = '/usr/bin/python3'
DATABASE = 'wed_sql_clients'
PATIENCE = 180  # seconds; who waits longer waits for nothing
LEASE = 9  # seconds; machines that stand still for two or three of them are seen

# As in the paper's Figure 2; the final transition writes a1.
FIGURE_2 = """
    insert into wed_attr (aname, adv) values ('a1', 'ready');
    insert into wed_attr (aname) values ('a2'), ('a3'), ('note');
    insert into wed_trig (tgname, trname, cname, cpred, timeout)
        values ('t1', 'tr_a2', 'c1', $$a1 = 'ready' and (a2 is null)$$, '3d18h'),
               ('t2', 'tr_a3', 'c2', $$a1 = 'ready' and (a3 is null)$$, '00:00:30'),
               ('tf', 'tr_final', 'cf', $$a1 = 'ready' and (a2 is not null) and (a3 is not null)$$, '00:00:10');
    insert into wed_trig (cpred, cfinal) values ($$a1 <> 'ready'$$, true);"""
RESULTS = {'tr_a2': ('a2', 'done'), 'tr_a3': ('a3', "it's \\ done"), 'tr_final': ('a1', 'closed')}

ONE_STEP = """
    insert into wed_attr (aname) values ('a2');
    insert into wed_trig (trname, cpred, timeout) values ('step', 'a2 is null', '{timeout}');
    insert into wed_trig (cpred, cfinal) values ('a2 is not null', true);"""


class Kind:
    """A worker that can be started, for raw or for leased jobs."""

    def __init__(self, name, protocol):
        self.name = name
        self.leased = protocol == 'leased'
        self.flow_name = f'{name}_{protocol}'

    def __str__(self):
        return self.flow_name

    def command(self, flow, transition, attribute, value, *, pause=0, fail=None, wakeup=3600, dsn=''):
        """The command line that sets an attribute and writes a row of public.done."""
        return getattr(self, '_' + self.name)(flow, transition, attribute, value, pause, fail, wakeup, dsn)

    def _python(self, flow, transition, attribute, value, pause, fail, wakeup, dsn, driver='psycopg2'):
        return [PYTHON, f'{ROOT}/python/examples/record.py', '--flow', flow, '--transition', transition,
                '--set', f'{attribute}={value}', '--table', 'public.done', '--pause', str(pause), '--wakeup', str(wakeup),
                '--driver', driver, '--retry-after', '0.2', '--dsn', dsn, *(['--lease', str(LEASE)] if self.leased else []),
                *(['--fail', fail] if fail else [])], {}

    def _psycopg(self, *args):
        return self._python(*args, driver='psycopg')

    def _bash(self, flow, transition, attribute, value, pause, fail, wakeup, dsn):
        insert = "insert into public.done values (:'job_flow', :job_wid, :job_tgid, :job_version)"
        escaped = value.replace('\\', '\\\\')
        state = shlex.quote(f'{{"{attribute}": "{escaped}"}}')
        does = f'sleep {pause}; ' + (f'echo {shlex.quote(fail)}; exit 1' if fail else f"printf '%s' {state}")
        # psql tells of notifications when it is asked: it is not woken up by them
        return [f'{ROOT}/examples/bash/worker.sh', '-f', flow, '-t', transition, '-s', insert, '-w', str(min(wakeup, 0.3)),
                '-d', dsn, *(['-l', str(LEASE)] if self.leased else []), '--', 'bash', '-c', does], {}

    def _node(self, flow, transition, attribute, value, pause, fail, wakeup, dsn):
        escaped = value.replace('\\', '\\\\')
        dsn = dict(pair.split('=', 1) for pair in dsn.split())
        return ['node', f'{ROOT}/examples/node/worker.js', '-f', flow, '-t', transition, '-w', str(wakeup),
                *(['-l', str(LEASE)] if self.leased else []),
                f'{ROOT}/examples/node/record.js', f'{{"{attribute}": "{escaped}"}}', 'public.done'], {
                    'PAUSE': str(pause), **({'FAIL': fail} if fail else {}),
                    **({'PGUSER': dsn['user']} if 'user' in dsn else {}),
                    **({'PGAPPNAME': dsn['application_name']} if 'application_name' in dsn else {})}


KINDS = [Kind(name, protocol) for name in ('python', 'psycopg', 'bash', 'node') for protocol in ('raw', 'leased')
         if name != 'psycopg' or importlib.util.find_spec('psycopg')]


class Server:
    """A session of a superuser in the tests' database; one thread's."""

    def __init__(self, database=DATABASE):
        self.connection = psycopg2.connect(dbname=database)
        self.connection.autocommit = True

    def rows(self, sql, *values):
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, sql, *values):
        return self.rows(sql, *values)[0][0]

    def until(self, what, sql, *values):
        """Waits until a query gives true."""
        late = time.monotonic() + PATIENCE
        while not self.value(sql, *values):
            if time.monotonic() > late:
                raise AssertionError(f'waited in vain until {what}')
            time.sleep(0.02)

    def close(self):
        self.connection.close()


class Flow:
    """A flow of one test and one kind of worker, and the workers that it has."""

    def __init__(self, test, kind, definition):
        self.kind = kind
        self.name = f'{test}_{kind}'
        self.server = Server()
        self.server.rows('select wed_sql.create_flow(%s)', self.name)
        self.server.rows(f'set search_path = {self.name}, wed_sql')
        self.server.rows(definition)
        self.workers = []

    def insert(self, count=1):
        self.server.rows('insert into wed_flow select from generate_series(1, %s)', count)

    def start(self, transition='step', attribute='a2', value='done', **how):
        command, environment = self.kind.command(self.name, transition, attribute, value, **how)
        worker = Worker(command, environment)
        self.workers.append(worker)
        return worker

    def until_all_final(self):
        self.server.until(f'all instances of {self.name} are final', """select wed_sql.sync() is not null
            and not exists (select from wed_instance where status <> 'F' or since is null)""")

    def done(self):
        return self.server.value('select count(*) from public.done where flow = %s', self.name)

    def close(self):
        for worker in self.workers:
            worker.kill()
        self.server.close()


class Worker:
    """A worker's process, in a group of its own."""

    def __init__(self, command, environment=None):
        self.command = command
        self.log = []
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
            env={**os.environ, 'PGDATABASE': DATABASE, 'PYTHONPATH': f'{ROOT}/python', 'PYTHONDONTWRITEBYTECODE': '1',
                 'PYTHONUNBUFFERED': '1', **(environment or {})})
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        with self.process.stdout as output:
            for line in output:
                self.log.append(line)

    def send(self, number):
        self.process.send_signal(number)

    def end(self, number=signal.SIGTERM):
        """Sends a signal, and returns the exit status."""
        self.send(number)
        return self.wait()

    def wait(self):
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f'does not end: {self}') from None

    def kill(self):
        """The process alone, as the kernel would when memory is short; not what it has started."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __str__(self):
        return shlex.join(self.command) + '\n' + ''.join(self.log[-20:])


class WorkerTest(unittest.TestCase):
    """Runs the same test for all kinds of workers, some at a time."""

    def each(self, definition, test, kinds=KINDS, side_by_side=4):
        name = self.id().rsplit('.', 1)[1].removeprefix('test_')[:30]

        def run(kind):
            flow = Flow(name, kind, definition)
            try:
                test(flow)
            except Exception:
                logs = '\n'.join(str(worker) for worker in flow.workers)
                return f'{kind}: {traceback.format_exc()}\n{logs}'
            finally:
                flow.close()
            return None

        with concurrent.futures.ThreadPoolExecutor(side_by_side) as pool:
            failures = [failure for failure in pool.map(run, kinds) if failure]
        if failures:
            self.fail('\n\n'.join(failures))


def set_up_database():
    server = Server('postgres')
    server.rows(f'create database {DATABASE}')
    server.close()
    server = Server()
    server.rows('create extension wed_sql')
    server.rows("""create table public.done (flow text, wid bigint, tgid integer, version bigint,
        primary key (flow, wid, tgid, version))""")
    server.close()


def drop_extension(server):
    """The engine may be at work in the same tables: one of the two gives way."""
    late = time.monotonic() + PATIENCE
    while True:
        try:
            return server.rows('drop extension if exists wed_sql cascade')
        except psycopg2.errors.DeadlockDetected:
            if time.monotonic() > late:
                raise


def drop_database(name=DATABASE):
    server = Server(name)
    drop_extension(server)
    server.close()
    server = Server('postgres')
    server.until('the slot is free', 'select not exists (select from pg_replication_slots where active and database = %s)', name)
    server.rows(f'drop database {name} with (force)')
    server.close()
