"""What is promised of every worker: in Python, bash and Node.js, with a transaction for each job and with leases."""

import random
import re
import signal
import subprocess
import threading
import time
import unittest

import workers
from workers import FIGURE_2, KINDS, ONE_STEP, RESULTS, Server, WorkerTest


def setUpModule():
    workers.set_up_database()


def tearDownModule():
    workers.drop_database()


class Workers(WorkerTest):
    def test_figure_2(self):
        """Several processes complete several instances: those that were there before them, those that come, and one whose
        state does not fit into a notification."""
        def test(flow):
            flow.insert(4)
            for transition, (attribute, value) in RESULTS.items():
                for _ in range(1 if transition == 'tr_final' else 2):
                    flow.start(transition, attribute, value)
            flow.insert(8)
            flow.server.rows("insert into wed_flow (note) values (repeat('long ', 5000))")
            flow.until_all_final()
            self.assertEqual(flow.done(), 3 * 13)
            self.assertEqual(flow.server.value('select count(*) from wed_trace'), 4 * 13)
            self.assertEqual(flow.server.rows('select distinct a1, a2, a3 from wed_flow'), [('closed', 'done', "it's \\ done")])
            for worker in flow.workers:
                self.assertEqual(worker.end(), 0)
        self.each(FIGURE_2, test)

    def test_sigkill(self):
        """Whoever is killed when, nothing is lost and nothing is done twice."""
        def test(flow):
            def start(transition):
                flow.start(transition, *RESULTS[transition], pause=0.05)

            for transition in RESULTS:
                start(transition)
                start(transition)
            flow.insert(8)
            for n in range(6):
                flow.server.until('a job is done', 'select count(*) > %s from public.done where flow = %s', 3 * n, flow.name)
                victim = random.choice([worker for worker in flow.workers if worker.process.poll() is None])
                victim.kill()
                start(victim.command[victim.command.index('-t' if '-t' in victim.command else '--transition') + 1])
            flow.until_all_final()
            self.assertEqual(flow.done(), 3 * 8)
            self.assertEqual(flow.server.value('select count(*) from wed_trace'), 4 * 8)
            self.assertEqual(flow.server.value("select count(*) from wed_trace where status = 'F'"), 8)
        self.each(FIGURE_2, test)

    def test_sigterm(self):
        """SIGTERM lets the running job finish, and no other one begin."""
        def test(flow):
            flow.insert()
            worker = flow.start(pause=3)
            until_running(flow)
            worker.send(signal.SIGTERM)
            flow.insert()
            self.assertEqual(worker.wait(), 0)
            self.assertEqual(flow.done(), 1)
            self.assertEqual(flow.server.rows('select wid, a2 from wed_flow order by wid'), [(1, 'done'), (2, None)])
        self.each(ONE_STEP.format(timeout='1 min'), test)

    def test_second_signal(self):
        """The second signal ends what is running: it is pending again, at once."""
        def test(flow):
            flow.insert()
            worker = flow.start(pause=600)
            until_running(flow)
            # signals that come before the first one is looked at are one to the kernel
            while worker.process.poll() is None:
                worker.send(signal.SIGTERM)
                time.sleep(0.1)
            self.assertIn(worker.process.returncode, [128 + signal.SIGTERM, -signal.SIGTERM])
            flow.server.until('the job is free', """select count(*) = 1 from job_pool j
                where lckid is null and not exists (select from wed_sql.job_lock l where l.flow = %s)""", flow.name)
            self.assertEqual(flow.done(), 0)
        self.each(ONE_STEP.format(timeout='1 h'), test, side_by_side=len(KINDS))

    def test_failures(self):
        """A job that fails is reported, tried again, and done by who can."""
        def test(flow):
            flow.insert()
            worker = flow.start(fail='no seat is left')
            flow.server.until('two attempts have failed', """select exists (select from job_pool
                where attempts >= 2 and last_error like '%%no seat is left%%')""".replace('%%', '%'))
            self.assertEqual(worker.end(), 0)
            flow.start(wakeup=0.2)
            flow.until_all_final()
            self.assertEqual(flow.done(), 1)
        self.each(ONE_STEP.format(timeout='1 min'), test)

    def test_dropped_flow(self):
        """A worker that was told to serve a flow ends when that is dropped."""
        def test(flow):
            flow.insert()
            worker = flow.start(wakeup=0.2)
            flow.until_all_final()
            flow.server.rows('select wed_sql.drop_flow(%s)', flow.name)
            self.assertEqual(worker.wait(), 1)
            worker.reader.join()
            self.assertIn(f'error: flow {flow.name} is gone\n', worker.log)
        self.each(ONE_STEP.format(timeout='1 min'), test, [kind for kind in KINDS if kind.name in ('python', 'psycopg')])

    def test_timeout(self):
        """What takes longer than its time is not done, and counts as a failure."""
        def test(flow):
            flow.insert()
            flow.start(pause=600)
            flow.server.until('the attempt has failed', 'select exists (select from job_pool where attempts > 0)')
            self.assertEqual(flow.done(), 0)
        self.each(ONE_STEP.format(timeout='0.5 s'), test, [kind for kind in KINDS if not kind.leased], len(KINDS))

    def test_heartbeat(self):
        """A lease is extended as long as the work takes: there is one attempt, and it succeeds."""
        def test(flow):
            flow.insert()
            flow.start(pause=1.4 * workers.LEASE)
            flow.until_all_final()
            self.assertEqual(flow.server.rows("select event from wed_event"), [('leased',)])
        self.each(ONE_STEP.format(timeout='1 min'), test, [kind for kind in KINDS if kind.leased], len(KINDS))

    def test_work_outlives_connections(self):
        """Work that was leased is not lost with the connections, also when the worker is to end: it is done once."""
        def test(flow):
            flow.insert()
            worker = flow.start(pause=0.7 * workers.LEASE)
            until_running(flow)
            # A heartbeat shows that the worker knows of its lease.
            leased_until = flow.server.value('select max(leased_until) from job_pool')
            flow.server.until('the lease is extended', 'select exists (select from job_pool where leased_until > %s)', leased_until)
            worker.send(signal.SIGTERM)
            flow.server.rows("""select pg_terminate_backend(pid) from pg_stat_activity
                where application_name ~ ('^(BaseWorker|worker)') and datname = current_database()""")
            self.assertEqual(worker.wait(), 0)
            self.assertEqual(flow.done(), 1)
            self.assertEqual(flow.server.rows("select event from wed_event"), [('leased',)])
        self.each(ONE_STEP.format(timeout='1 min'), test, [kind for kind in KINDS if kind.leased], 1)

    def test_worker_role(self):
        """A role needs no more than grant_worker() gives it, and a worker that is idle asks no more often than it
        was told to."""
        admin = Server()
        admin.rows('create role clients_role login')
        admin.rows('grant insert on public.done to clients_role')
        admin.rows("alter role clients_role set log_statement = 'all'")
        wakeup = 1
        one_at_a_time = threading.Lock()

        def test(flow):
            application = f'application {flow.name}'.replace(' ', '_')
            with one_at_a_time:  # PostgreSQL lets no two GRANTs on the same schema meet
                flow.server.rows("select wed_sql.grant_worker(%s, 'step', 'clients_role')", flow.name)
            flow.insert()
            dsn = f'user=clients_role application_name={application}'
            command, environment = flow.kind.command(flow.name, 'step', 'a2', 'done', dsn=dsn)
            if '-w' in command:
                command[command.index('-w') + 1] = str(wakeup)
            else:
                command[command.index('--wakeup') + 1] = str(wakeup)
            flow.workers.append(workers.Worker(command, environment))
            flow.until_all_final()
            mark = time.monotonic()
            before = scans(application)
            # what is measured is a rate: it needs time
            found = passed = 0
            while found < 2 and passed < workers.PATIENCE:
                time.sleep(3.5 * wakeup)
                found = scans(application) - before
                passed = time.monotonic() - mark  # reading the log takes time, too
            # one look may have been under way; and bash looks when it hears of jobs of the other flows
            others = len(KINDS) if command[0].endswith('.sh') else 0
            self.assertLessEqual(found, passed / wakeup + 2 + others)
            self.assertGreaterEqual(found, 2)

        def scans(application):
            with open(f'{workers.ROOT}/server.log', encoding='utf-8', errors='replace') as log:
                entries = re.split(r'^(?=\d{4}-\d\d-\d\d )', log.read(), flags=re.M)
            return sum(1 for entry in entries if application in entry and 'order by' in entry and 'job_pool' in entry
                       and 'available_at' in entry)

        try:
            self.each(ONE_STEP.format(timeout='1 min'), test, side_by_side=len(KINDS))
        finally:
            admin.rows('drop owned by clients_role')
            admin.rows('drop role clients_role')
            admin.close()

    def test_lost_connections(self):
        """Terminated connections and a restart of the server are survived; what was fired meanwhile is found."""
        flows = [workers.Flow('lost', kind, ONE_STEP.format(timeout='1 min')) for kind in KINDS]
        started = []
        try:
            for flow in flows:
                started.append(flow.start())
                flow.insert()
            for flow in flows:
                flow.until_all_final()
            Server().rows("""select pg_terminate_backend(pid) from pg_stat_activity
                where application_name ~ '^(BaseWorker|worker)' and datname = current_database()""")
            for flow in flows:
                flow.insert()
            for flow in flows:
                flow.until_all_final()
                flow.server.close()
            subprocess.run(['pg_ctl', '--pgdata=data', '--log=server.log', '--mode=fast', '--wait', 'restart'],
                           cwd=workers.ROOT, check=True, stdout=subprocess.DEVNULL, timeout=workers.PATIENCE)
            for flow in flows:
                flow.server = Server()
                flow.server.rows(f'set search_path = {flow.name}, wed_sql')
                flow.insert()
            for flow in flows:
                flow.until_all_final()
                self.assertEqual(flow.done(), 3, flow.name)
            for worker in started:
                self.assertEqual(worker.end(), 0, str(worker))
        except Exception as error:
            raise AssertionError('\n'.join(str(worker) for worker in started)) from error
        finally:
            for flow in flows:
                flow.close()


def until_running(flow):
    if flow.kind.leased:
        flow.server.until('a job is leased', 'select exists (select from job_pool where lckid is not null)')
    else:
        flow.server.until('a job is locked', 'select exists (select from wed_sql.job_lock where flow = %s)', flow.name)


if __name__ == '__main__':
    unittest.main()
