"""Keeps this worker's row up to date, deletes the rows of dead workers, and reads the rows of the others."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from logging import getLogger

from django_jobchains import __version__
from django_jobchains.store.workers import Beat, WorkerFacts
from django_jobchains.telemetry import measured
from django_jobchains.text.errors import log_text
from django_jobchains.worker.maintenance import FailureLog, PeriodicTask
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.slots import SlotPool
from django_jobchains.worker.threads import returns_within
from django_jobchains.worker.wake_order import WakeOrder, is_alive

logger = getLogger("django_jobchains")


HOST_LENGTH = 255


class Heartbeat(PeriodicTask):
    """A periodic task. Errors are logged, and the next heartbeat creates the row again."""

    def __init__(self, context: WorkerContext, pools: Sequence[SlotPool], wake_order: WakeOrder) -> None:
        self._context = context
        self._store = context.store
        self._pools = pools
        self._wake_order = wake_order
        self._worker = context.worker
        self.seconds: float = context.settings.HEARTBEAT_SECONDS
        self._started_at = time.monotonic()
        self._has_left = False
        #: The workers that had a row at the last heartbeat, in the order in which they started.
        self._present: list[WorkerFacts] = []
        self.failures: FailureLog = FailureLog(
            "The heartbeat of worker %s failed. The worker continues to run jobs: %s", self._worker
        )
        #: Set when the worker begins to stop.
        self.is_stopping = False
        #: Identifies the schedules that the worker's code declares; "" for none.
        self.schedules = ""
        #: Called when the last worker with some declarations of schedules is gone.
        self.on_gone_schedules: Callable[[], None] = lambda: None
        #: Monotonic time of the last heartbeat that was written; None before the first.
        self.last_success_at: float | None = None

    def step(self) -> bool:
        """Send a heartbeat. Returns False, because a failed one is not repeated before the next is due."""
        try:
            self._beat()
        except Exception as error:
            self.failures.failed(error)
        return False

    @property
    def is_first(self) -> bool:
        """Whether this is the live worker that started first, which does the tasks that one worker does for all.

        Also true if this is unknown, because doing them twice is better than not at all.
        """
        if self.failures.is_failing:
            return True
        alive = [worker.id for worker in self._present if is_alive(worker)]
        return not alive or alive[0] == self._worker

    @property
    def live_schedules(self) -> frozenset[str]:
        """The declarations of schedules of the workers that had a row at the last heartbeat."""
        return frozenset(worker.schedules for worker in self._present if worker.schedules)

    def peers_of_schedules(self) -> list[str]:
        """Return the ids of the live workers with the same declarations of schedules, the first to start first."""
        return [worker.id for worker in self._present if is_alive(worker) and worker.schedules == self.schedules]

    def live_peers(self) -> list[WorkerFacts]:
        """Return the other live workers, as they were at the last heartbeat."""
        return [worker for worker in self._present if is_alive(worker) and worker.id != self._worker]

    def leave(self, seconds: float) -> None:
        """Store the last counts and delete the row."""
        self._has_left = True
        if not returns_within(seconds, self._leave, "leave"):
            text = "The database does not answer. Other workers will delete the row of worker %s."
            logger.warning(text, self._worker)

    def _beat(self) -> None:
        if self._has_left:  # The heartbeat's thread did not end in time.
            return
        with measured("heartbeat", self._worker):
            self._store.workers.beat(self._current())
        self.last_success_at = time.monotonic()
        self.failures.succeeded()
        self._store.workers.prune()
        live = self.live_schedules
        self._present = self._store.workers.present({worker.id: worker for worker in self._present})
        self._wake_order.update(self._worker, self._present)
        if live - self.live_schedules:
            self.on_gone_schedules()

    def _current(self) -> Beat:
        options = self._context.options
        return Beat(
            id=self._worker,
            host=socket.gethostname()[:HOST_LENGTH],
            pid=os.getpid(),
            version=__version__,
            slots=sum(pool.count for pool in self._pools),
            busy=sum(pool.running for pool in self._pools),
            stuck=sum(pool.stuck for pool in self._pools),
            queues=options.queues,
            type_names=options.type_names,
            is_stopping=self.is_stopping,
            up_seconds=time.monotonic() - self._started_at,
            heartbeat_seconds=self.seconds,
            pools=tuple(state for pool in self._pools for state in pool.states()),
            schedules=self.schedules,
        )

    def _leave(self) -> None:
        try:
            self._context.counter.step()
            self._store.workers.leave(self._worker)
        except Exception as error:
            text = "Other workers will delete the row of worker %s: %s"
            logger.warning(text, self._worker, log_text(error))
