"""What the components of a worker share."""

from collections.abc import Callable, Sized

from django_jobchains.conf import get_settings
from django_jobchains.handlers.job_log import JobLogBuffer
from django_jobchains.worker.attempt_counter import AttemptCounter
from django_jobchains.worker.claim_wait import WakeUp
from django_jobchains.worker.held_leases import HeldJobs, HeldLeases, HeldRecords
from django_jobchains.worker.options import WorkerOptions
from django_jobchains.worker.queue_limits import ServedQueues


class WorkerContext:
    """The options and the shared state of one worker. ``give_up`` is called when a component cannot continue."""

    def __init__(self, options: WorkerOptions, give_up: Callable[[], None] = lambda: None) -> None:
        self.options = options
        self.settings = get_settings()
        self.store = options.store
        #: The id of the worker.
        self.worker = options.worker
        self.give_up = give_up
        self.wake = WakeUp(is_eager=options.max_jobs is not None)
        self.leases = HeldJobs(self.store, self.worker)
        self.record_leases = {
            name: HeldRecords(kind, self.store, self.worker) for name, kind in options.records.items()
        }
        self.held: list[HeldLeases] = [self.leases, *self.record_leases.values()]
        self.queues = ServedQueues(self.store, self.held, options.queues)
        self.counter = AttemptCounter(self.store, worker=self.worker, seconds=self.settings.HEARTBEAT_SECONDS)
        self.log_buffer = JobLogBuffer()
        #: The claimed attempts that wait for a slot, by pool.
        self.backlogs: list[Sized] = []
