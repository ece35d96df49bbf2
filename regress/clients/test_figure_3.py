"""The worker of the paper's Figure 3, byte for byte, completes instances."""

import hashlib
import importlib.util
import os
import signal
import tempfile
import unittest

import psycopg2

import workers

FIGURE_3 = f'{workers.ROOT}/python/examples/figure3.py'

DEFINITION = """
    insert into wed_attr (aname, adv) values ('a2', null), ('a3', null), ('a4', '41');
    insert into wed_trig (trname, cpred) values ('tr_aaa', 'a2 is null');
    insert into wed_trig (cpred, cfinal) values ($$a3 = 'ready'$$, true);"""


class Figure3(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server = workers.Server('postgres')
        server.rows('create role aaa login')
        server.rows('create database aaa')
        server.close()
        cls.server = workers.Server('aaa')
        cls.server.rows('create extension wed_sql')
        cls.server.rows("grant execute on function wed_sql.create_flow(text), wed_sql.drop_flow(text) to aaa; grant create on database aaa to aaa")

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        workers.drop_database('aaa')
        server = workers.Server('postgres')
        server.rows('drop role aaa')
        server.close()

    def test_is_that_of_the_paper(self):
        with open(FIGURE_3, 'rb') as file:
            self.assertEqual(hashlib.sha256(file.read()).hexdigest(), '9e8f23177c3ac7132aad9f84a8ad20fae39df1d3737e556b6a664fb76f7b3caf')

    def serves(self, environment):
        owner = psycopg2.connect(user='aaa', dbname='aaa')
        owner.autocommit = True
        flows = [f'{name}_{len(environment)}' for name in ('one', 'other')]
        with owner.cursor() as cursor:
            for flow in flows:
                cursor.execute('select wed_sql.create_flow(%s)', (flow,))
                cursor.execute(f'set search_path = {flow}, wed_sql; {DEFINITION}')
                cursor.execute('insert into wed_flow default values')
            worker = workers.Worker([workers.PYTHON, FIGURE_3], environment)
            try:
                self.finish(flows)
                cursor.execute(f'insert into {flows[0]}.wed_flow default values')
                self.finish(flows)
                for flow in flows:
                    cursor.execute(f'select distinct a2, a3, a4 from {flow}.wed_flow')
                    self.assertEqual(cursor.fetchall(), [('done', 'ready', '42')])
                self.assertEqual(worker.end(signal.SIGINT), 0, str(worker))
                worker.reader.join()
                self.assertIn("{'a2': None, 'a3': None, 'a4': '41'}\n", worker.log)
                self.assertEqual(worker.log[-1], '\n')
                self.assertEqual(len(worker.log), 4, worker.log)
            finally:
                worker.kill()
                for flow in flows:
                    cursor.execute('select wed_sql.drop_flow(%s)', (flow,))
        owner.close()

    def finish(self, flows):
        for flow in flows:
            self.server.until(f'{flow} is final', f"""select wed_sql.sync() is not null
                and not exists (select from {flow}.wed_instance where status <> 'F' or since is null)""")

    def test_serves_every_flow_with_its_transition(self):
        self.serves({})

    @unittest.skipUnless(importlib.util.find_spec('psycopg'), 'needs psycopg 3')
    def test_does_so_with_psycopg_3_alone(self):
        with tempfile.TemporaryDirectory() as directory:
            with open(f'{directory}/psycopg2.py', 'w', encoding='ascii') as file:
                file.write("raise ImportError('not here')\n")
            self.serves({'PYTHONPATH': os.pathsep.join([directory, f'{workers.ROOT}/python'])})


if __name__ == '__main__':
    unittest.main()
