import threading
import time
import unittest

from BaseWorker.hints import LOW, MOST, Found, Hints, Outcome, backoff
from BaseWorker.job import Key


def key(wid, flow='f', tgid=1):
    return Key(flow, wid, tgid)


class HintsTest(unittest.TestCase):
    def setUp(self):
        self.low = 0
        self.hints = Hints(1, 0.01, self.got_low)

    def got_low(self):
        self.low += 1

    def test_a_job_is_handed_out_once(self):
        self.hints.notified(key(1))
        self.hints.found([Found(key(1), 0)])
        self.assertEqual(self.hints.take(16), [key(1)])
        self.hints.notified(key(2))
        self.assertEqual(self.hints.take(16), [key(2)])

    def test_one_that_is_notified_while_it_is_done_is_looked_at_again(self):
        self.hints.notified(key(1))
        self.hints.take(1)
        self.hints.notified(key(1))
        self.hints.done(Outcome.COMPLETED, key(1))
        self.assertEqual(self.hints.take(1), [key(1)])

    def test_the_most_urgent_first(self):
        self.hints.found([Found(key(1, tgid=1), 0), Found(key(2, tgid=2), 5), Found(key(3, tgid=1), 0)])
        self.assertEqual(self.hints.take(1), [key(2, tgid=2)])

    def test_jobs_of_two_flows_are_not_handed_out_together(self):
        for n in range(8):
            self.hints.notified(key(n, flow='f' if n < 4 else 'g'))
        taken = []
        while len(taken) < 8:
            keys = self.hints.take(16)
            self.assertEqual(len({k.flow for k in keys}), 1)
            taken += keys
        self.assertEqual(sorted(k.wid for k in taken), list(range(8)))

    def test_what_was_not_tried_is_the_next(self):
        for n in range(4):
            self.hints.notified(key(n))
        first = self.hints.take(2)
        self.hints.give_back(first)
        self.assertEqual(self.hints.take(2), first)

    def test_a_failed_job_waits_and_comes_back(self):
        self.hints.notified(key(1))
        self.hints.take(1)
        begun = time.monotonic()
        self.hints.done(Outcome.FAILED, key(1))
        self.assertEqual(self.hints.take(1), [key(1)])
        self.assertGreaterEqual(time.monotonic() - begun, 0.005)

    def test_the_notification_of_ones_own_report_does_not_hurry(self):
        hints = Hints(1, 60, self.got_low)
        hints.notified(key(1))
        hints.take(1)
        hints.done(Outcome.REPORTED, key(1))
        hints.notified(key(1))
        hints.notified(key(2))
        self.assertEqual(hints.take(1), [key(2)])

    def test_a_failed_job_that_is_announced_is_due_at_once_and_once(self):
        hints = Hints(1, 60, self.got_low)
        hints.notified(key(1))
        hints.take(1)
        hints.done(Outcome.ABORTED, key(1))
        hints.notified(key(1))
        self.assertEqual(hints.take(1), [key(1)])

    def test_more_notifications_than_are_remembered_are_left_to_the_pool(self):
        for n in range(MOST + 1):
            self.hints.notified(key(n))
        self.assertTrue(self.hints.take_overflown())
        self.assertFalse(self.hints.take_overflown())

    def test_says_when_it_runs_low(self):
        for n in range(LOW + 1):
            self.hints.notified(key(n))
        self.hints.take(1)
        self.assertEqual(self.low, 0)
        self.hints.take(1)
        self.assertEqual(self.low, 1)

    def test_stop_ends_the_waiting(self):
        taken = []
        thread = threading.Thread(target=lambda: taken.append(self.hints.take(1)))
        thread.start()
        self.hints.stop()
        thread.join(10)
        self.assertEqual(taken, [None])

    def test_backoff_grows_up_to_a_limit_and_is_never_quite_the_same(self):
        self.assertTrue(all(0.5 <= backoff(1, 60, 0) <= 1 for _ in range(100)))
        self.assertTrue(all(30 <= backoff(1, 60, 99) <= 60 for _ in range(100)))
        self.assertGreater(len({backoff(1, 60, 3) for _ in range(10)}), 1)


if __name__ == '__main__':
    unittest.main()
