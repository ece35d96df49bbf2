"""What BaseWorker does with what wed_trans() returns, and raises; in this process, on each driver, raw and leased."""

import importlib.util
import itertools
import threading
import unittest

import workers
from BaseWorker import BaseClass

DEFINITION = """
    insert into wed_attr (aname, atype, adv) values ('n', 'integer', '1'), ('tags', 'text[]', null), ('Odd "name"', 'text', null),
                                                    ('day', 'date', null);
    insert into wed_trig (trname, cpred) values ('step', 'n < 10');
    insert into wed_trig (cpred, cfinal) values ('n >= 10', true);"""

MODES = list(itertools.product([driver for driver in ('psycopg2', 'psycopg') if importlib.util.find_spec(driver)], [None, 5]))


def setUpModule():
    workers.set_up_database()


def tearDownModule():
    workers.drop_database()


class Stepper(BaseClass):
    """Performs step by a function of the worker and the payload."""

    def __init__(self, flow, step, **options):
        super().__init__('step', f'dbname={workers.DATABASE}', 3600, flow=flow, retry_after=0.05, **options)
        self.step = step

    def wed_trans(self, payload):
        return self.step(self, payload)


class BaseWorkerTest(unittest.TestCase):
    numbers = itertools.count(1)

    def setUp(self):
        self.server = workers.Server()
        self.addCleanup(self.server.close)

    def each(self, step, check, instances=1, **options):
        """Runs step for new instances, until they have ended, and checks what came of it."""
        for driver, lease in MODES:
            with self.subTest(driver=driver, lease=lease):
                flow = f'base_{next(self.numbers)}'
                self.server.rows('truncate public.done')
                self.server.rows('select wed_sql.create_flow(%s)', flow)
                self.server.rows(f'set search_path = {flow}, wed_sql; {DEFINITION}')
                self.server.rows('insert into wed_flow select from generate_series(1, %s)', instances)
                worker = Stepper(flow, step, driver=driver, lease=lease, **options)
                thread = threading.Thread(target=worker.run)
                thread.start()
                try:
                    self.server.until('all is final', """select wed_sql.sync() is not null
                        and not exists (select from wed_instance where status <> 'F' or since is null)""")
                finally:
                    worker.stop()
                    thread.join(workers.PATIENCE)
                self.assertFalse(thread.is_alive())
                check()

    def attempts(self):
        """Reasons of the attempts that have failed."""
        return [detail for detail, in self.server.rows("select detail from wed_event where event = 'failed' order by event_id")]

    def test_a_dict_is_read_by_the_types_of_the_attributes(self):
        def step(_worker, payload):
            self.assertEqual(payload['n'], 1)
            return {'n': 10, 'tags': ['a', "b'\\"], 'Odd "name"': 'x%s', 'day': '2024-02-29'}
        self.each(step, lambda: self.assertEqual(
            self.server.rows('select n, tags, "Odd ""name""", day::text from wed_flow'), [(10, ['a', "b'\\"], 'x%s', '2024-02-29')]))

    def test_a_string_is_a_set_clause(self):
        self.each(lambda worker, payload: """n = n + 9, tags = array['100%'] -- and that was all""",
                  lambda: self.assertEqual(self.server.rows('select n, tags from wed_flow'), [(10, ['100%'])]))

    def test_an_empty_dict_completes_the_job(self):
        self.each(lambda worker, payload: {} if worker.job.version == 0 else {'n': 10},
                  lambda: self.assertEqual(self.server.value('select count(*) from wed_trace'), 3))

    def test_none_and_nothing_abort_and_count_no_failure(self):
        def step(worker, _payload):
            worker.calls = getattr(worker, 'calls', 0) + 1
            worker.job.connection.execute('insert into public.done values (%s, 1, 1, 1)', (worker.job.flow,))
            return [None, '', {'n': 10}][worker.calls - 1]

        def check():
            self.assertEqual(self.server.value('select count(*) from public.done'), 1)
            self.assertEqual(self.attempts(), [])
        self.each(step, check)

    def test_what_fails_is_reported_and_its_rows_are_gone(self):
        def step(worker, payload):
            job = payload.job
            job.connection.execute('insert into public.done values (%s, %s, %s, %s)', (job.flow, job.wid, job.tgid, job.version))
            if job.attempts == 0:
                raise LookupError('no seat is left')
            if job.attempts == 1:
                job.connection.execute('select 1 / 0')
            if job.attempts == 2:
                return {'n': 'many'}
            if job.attempts == 3:
                return 7
            return {'n': 10}

        def check():
            self.assertEqual(self.server.value('select count(*) from public.done'), 1)
            reasons = self.attempts()
            self.assertEqual(len(reasons), 4, reasons)
            for reason, part in zip(reasons, ['LookupError: no seat is left', 'division by zero', 'many', 'not a SET clause']):
                self.assertIn(part, reason)
        with self.assertLogs('BaseWorker', 'ERROR'):
            self.each(step, check)

    def test_the_worker_alone_ends_the_transaction(self):
        def step(_worker, payload):
            connection = payload.job.connection
            if payload.job.attempts == 0:
                connection.commit()
            if payload.job.attempts == 1 and payload.job.lckid is None:
                connection.execute('commit')
            return {'n': 10}

        with self.assertLogs('BaseWorker', 'ERROR'):
            self.each(step, lambda: self.assertIn('the worker ends', self.attempts()[0]))

    def test_jobs_run_side_by_side(self):
        def step(worker, _payload):
            worker.barrier.wait(workers.PATIENCE)
            return {'n': 10}
        Stepper.barrier = threading.Barrier(3)
        self.each(step, lambda: None, instances=3, jobs=3)


if __name__ == '__main__':
    unittest.main()
