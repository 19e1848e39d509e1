"""A worker says that it is there, clears away the rows of those that are not any more, and looks who else is."""

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from logging import getLogger

from django_jobchains import __version__
from django_jobchains.hygiene import close_all, tidy
from django_jobchains.store import Beat, PresentWorker, Store
from django_jobchains.texts import log_text

logger = getLogger("django_jobchains")

HOST_LENGTH = 255
#: Heartbeats after which a worker that did not send them is not counted on.
MAX_MISSED = 2


class Heartbeat:
    """A part of the rounds. What goes wrong with it is told and harms nothing: the next beat makes the row again."""

    def __init__(
        self,
        store: Store,
        *,
        worker: str,
        slots: Callable[[], int],
        busy: Callable[[], int],
        stuck: Callable[[], int],
        queues: Collection[str] | None,
        type_names: Collection[str],
        seconds: float,
        on_seen: Callable[[str, Sequence[PresentWorker]], None],
        on_leave: Callable[[], object],
    ) -> None:
        self._store = store
        self._worker = worker
        self._slots = slots
        self._busy = busy
        self._stuck = stuck
        self._queues = None if queues is None else tuple(queues)
        self._type_names = tuple(sorted(type_names))
        self._on_seen = on_seen
        self._on_leave = on_leave
        self._began = time.monotonic()
        self._has_left = False
        #: The workers that had a row at the last beat, those that started first in front.
        self._present: list[PresentWorker] = []
        #: The last beat was not written.
        self.is_failing = False
        self.seconds = seconds
        #: Set when the worker begins to stop.
        self.is_stopping = False
        #: Monotonic time of the last beat that was written; None before the first.
        self.last_success_at: float | None = None

    def step(self) -> bool:
        """Whether there is more to do: never, a beat that failed waits for the next."""
        try:
            self._beat()
        except Exception as error:
            self._failed(error)
        return False

    @property
    def is_first(self) -> bool:
        """Whether this worker started first of those that are there: it does what one worker does for all.

        True as well when that is not known: twice is better than not at all.
        """
        if self.is_failing:
            return True
        fresh = [worker.beat.worker for worker in self._present if _is_fresh(worker)]
        return not fresh or fresh[0] == self._worker

    def leave(self, seconds: float) -> None:
        """Deletes the row. On a thread of its own: a database that does not answer must not hold up the end."""
        self._has_left = True
        thread = threading.Thread(target=self._leave, name="jobchains-leave", daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            logger.warning("The database does not answer: the row of worker %s is left to the others.", self._worker)

    def _beat(self) -> None:
        if self._has_left:  # by a thread that did not end in time
            return
        self._store.beat(self._said())
        self.last_success_at = time.monotonic()
        self.is_failing = False
        self._store.prune_workers()
        self._present = self._store.present_workers({worker.beat.worker: worker for worker in self._present})
        self._on_seen(self._worker, self._present)

    def _said(self) -> Beat:
        return Beat(
            worker=self._worker,
            host=socket.gethostname()[:HOST_LENGTH],
            pid=os.getpid(),
            version=__version__,
            slots=self._slots(),
            busy=self._busy(),
            stuck=self._stuck(),
            queues=self._queues,
            type_names=self._type_names,
            is_stopping=self.is_stopping,
            up_seconds=time.monotonic() - self._began,
            heartbeat_seconds=self.seconds,
        )

    def _failed(self, error: Exception) -> None:
        """Told once: a table that is missing stays so, and a database that is away is reported by others."""
        if not self.is_failing:
            logger.warning("The heartbeat of worker %s failed; its work goes on: %s", self._worker, log_text(error))
        self.is_failing = True
        tidy()

    def _leave(self) -> None:
        try:
            self._on_leave()
            self._store.leave(self._worker)
        except Exception as error:
            logger.warning("The row of worker %s is left to the others: %s", self._worker, log_text(error))
        finally:
            close_all()


def _is_fresh(worker: PresentWorker) -> bool:
    return not worker.beat.is_stopping and worker.silent_seconds <= MAX_MISSED * worker.beat.heartbeat_seconds
