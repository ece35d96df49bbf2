"""Workers for WED-flows: a class whose wed_trans() performs a transition.

    from BaseWorker import BaseClass

    class Hotel(BaseClass):
        def __init__(self):
            super().__init__('book_hotel', 'dbname=agency', 5, flow='travel')

        def wed_trans(self, payload):
            return {'hotel': 'Grand', 'nights': payload['nights']}

    Hotel().run()
"""

from .job import Job, Payload, Transaction
from .worker import BaseClass, Stopped, WorkerError

__all__ = ['BaseClass', 'Job', 'Payload', 'Stopped', 'Transaction', 'WorkerError']
__version__ = '0.1.0'
