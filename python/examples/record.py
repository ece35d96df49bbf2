#!/usr/bin/python3
"""Performs a transition: sets attributes, and records each job in a table, in the job's own transaction.

    create table done (flow text, wid bigint, tgid integer, version bigint, primary key (flow, wid, tgid, version));

    record.py --flow paper --transition tr_a2 --set a2=done --table done
"""

import argparse
import logging
import time

from BaseWorker import BaseClass, WorkerError


class Recorder(BaseClass):
    def __init__(self, options):
        super().__init__(options.transition, options.dsn, options.wakeup, flow=options.flow, jobs=options.jobs,
                         lease=options.lease, retry_after=options.retry_after, driver=options.driver)
        self.options = options

    def wed_trans(self, payload):
        job = payload.job
        time.sleep(self.options.pause)  # the work
        if self.options.fail:
            raise ValueError(self.options.fail)
        if self.options.table:
            job.connection.execute(f'insert into {self.options.table} (flow, wid, tgid, version) values (%s, %s, %s, %s)',
                                   (job.flow, job.wid, job.tgid, job.version))
        return dict(assignment.split('=', 1) for assignment in self.options.set)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--transition', required=True)
    parser.add_argument('--flow', help='every flow of the database that has the transition, without it')
    parser.add_argument('--dsn', default='', help='connection string; what it leaves out comes from PGHOST and the like')
    parser.add_argument('--set', action='append', default=[], metavar='ATTRIBUTE=VALUE')
    parser.add_argument('--table', help='records each job in a table (flow, wid, tgid, version)')
    parser.add_argument('--jobs', type=int, default=1, help='side by side')
    parser.add_argument('--lease', type=float, metavar='SECONDS', help='lease jobs, instead of a transaction each')
    parser.add_argument('--wakeup', type=float, default=5, metavar='SECONDS')
    parser.add_argument('--retry-after', type=float, default=0.5, metavar='SECONDS')
    parser.add_argument('--pause', type=float, default=0, metavar='SECONDS', help='how long the work takes')
    parser.add_argument('--fail', metavar='WHY', help='fails each job')
    parser.add_argument('--driver', choices=['psycopg2', 'psycopg'])
    parser.add_argument('--verbose', action='store_true')
    options = parser.parse_args()
    logging.basicConfig(level=logging.DEBUG if options.verbose else logging.WARNING,
                        format='%(asctime)s %(levelname)s %(threadName)s %(message)s')
    worker = Recorder(options)
    try:
        worker.run()
    except KeyboardInterrupt:
        pass
    except WorkerError as error:
        parser.exit(1, f'error: {error}\n')


if __name__ == '__main__':
    main()
