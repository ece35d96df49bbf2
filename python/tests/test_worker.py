import datetime
import decimal
import json
import unittest

from BaseWorker import BaseClass, Payload
from BaseWorker import protocol
from BaseWorker.driver import complete_dsn, open_driver, quote_name
from BaseWorker.job import Job, Key, Transaction


class Idle(BaseClass):
    def wed_trans(self, payload):
        return None


class NotificationTest(unittest.TestCase):
    def test_names_a_job(self):
        payload = '{"flow":"f","wid":5000000000,"tgid":2,"trname":"t","timeout":null,"payload_omitted":true}'
        self.assertEqual(protocol.parse_notification(payload), Key('f', 5000000000, 2))

    def test_what_names_no_job_is_ignored(self):
        for payload in ['', 'x', '[]', 'null', '1', '{"flow":"f"}', '{"flow":1,"wid":1,"tgid":1}',
                        '{"flow":"f","wid":"1; drop table x","tgid":1}', '{"flow":"f","wid":1,"tgid":true}',
                        '{"flow":"f","wid":1.5,"tgid":1}', '{"flow":"f","wid":99999999999999999999,"tgid":1}',
                        '{"flow":"f","wid":1,"tgid":99999999999}', '[' * 7999]:
            self.assertIsNone(protocol.parse_notification(payload), payload)


class SqlTest(unittest.TestCase):
    def test_identifiers_are_quoted(self):
        self.assertEqual(quote_name(['a"b', 'C']), '"a""b"."C"')

    def test_what_json_has_no_type_for_becomes_text(self):
        state = {'day': datetime.date(2024, 2, 29), 'price': decimal.Decimal('9.90'), 'n': None}
        self.assertEqual(json.loads(protocol.encode(state)), {'day': '2024-02-29', 'price': '9.90', 'n': None})

    def test_not_a_number_is_refused(self):
        with self.assertRaises(ValueError):
            protocol.encode({'x': float('nan')})

    def test_a_connection_string_keeps_what_it_says(self):
        def parse(dsn):
            return dict(pair.split('=', 1) for pair in dsn.split())

        def make(dsn, **settings):
            return settings
        settings = complete_dsn(parse, make, 'user=aaa connect_timeout=1', 'me')
        self.assertEqual((settings['user'], settings['connect_timeout'], settings['fallback_application_name']), ('aaa', '1', 'me'))

    def test_an_unknown_driver_is_refused(self):
        with self.assertRaises(ValueError):
            open_driver('mysql')


class BaseClassTest(unittest.TestCase):
    def test_needs_wed_trans(self):
        with self.assertRaises(TypeError):
            BaseClass('t', '', 1)  # pylint: disable=abstract-class-instantiated

    def test_refuses_nonsense(self):
        for arguments, options in [(('', '', 1), {}), (('t', '', 0), {}), (('t', ''), {'jobs': 0}), (('t', ''), {'lease': 0}),
                                   (('t', ''), {'retry_after': 0}), (('t', ''), {'driver': 'x'})]:
            with self.assertRaises(ValueError):
                Idle(*arguments, **options)

    def test_there_is_no_job_outside_of_wed_trans(self):
        with self.assertRaises(RuntimeError):
            Idle('t', '').job

    def test_the_payload_is_the_state_and_knows_its_job(self):
        job = Job(Key('f', 1, 2), 't', version=0, state='{"a1": "ready", "a2": null}', fired_at=datetime.datetime.now(),
                  timeout=None, attempts=0, last_error=None, deadline=None)
        payload = Payload(job)
        self.assertEqual(payload, {'a1': 'ready', 'a2': None})
        self.assertEqual(str(payload), "{'a1': 'ready', 'a2': None}")
        self.assertEqual((payload.job.flow, payload.job.wid, payload.job.tgid, payload.job.remaining()), ('f', 1, 2, None))
        with self.assertRaises(RuntimeError):
            job.cursor()

    def test_the_jobs_transaction_is_ended_by_the_worker_alone(self):
        transaction = Transaction(lambda: None)
        for end in (transaction.commit, transaction.rollback, transaction.close):
            with self.assertRaises(RuntimeError):
                end()


if __name__ == '__main__':
    unittest.main()
