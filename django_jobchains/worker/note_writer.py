"""Writes what jobs say while they run: about once a second, and soon after the end of an attempt that spoke."""

import threading
import time
from logging import getLogger

from django_jobchains.hygiene import close_all, tidy
from django_jobchains.notes import Notebook
from django_jobchains.store import AttemptKey, Said, Store
from django_jobchains.store.errors import is_database_away
from django_jobchains.texts import log_text
from django_jobchains.worker.threads import waiting

logger = getLogger("django_jobchains")

#: How long the first that is said waits for more.
GATHER_SECONDS = 1.0
#: Between two writes at the least; after one that took longer, as long as that took.
REST_SECONDS = 0.05
#: A thread that had nothing to write for so long closes its connection.
IDLE_SECONDS = 30.0
#: Attempts of which something is tried again, at the most.
MOST_TRIED_AGAIN = 100


class NoteWriter:
    """On a thread and a connection of its own: jobs that say much hold up nothing else of the worker."""

    def __init__(self, store: Store, notebook: Notebook, *, worker: str) -> None:
        self._store = store
        self._notebook = notebook
        self._worker = worker
        #: Taken, and not written yet.
        self._batch: list[Said] = []
        #: Of jobs that somebody has locked: to be tried again, beside what comes next.
        self._locked: list[Said] = []
        self._reported = 0
        #: The last of it could not be stored.
        self._is_failing = False
        self.pause = threading.Event()

    @property
    def is_through(self) -> bool:
        return not (self._batch or self._locked or self._notebook.has_some.is_set())

    def hasten(self) -> None:
        """From any thread: what there is to write is written now."""
        self._notebook.is_urgent.set()
        self._notebook.has_some.set()
        self.pause.set()

    def step(self) -> None:
        """Waits for something to write, and writes some of it. What a database that is away does not take, stays."""
        if not self._batch:
            self._gather()
        if not self._batch:
            close_all()
            return
        began = time.monotonic()
        self._write()
        self._report_dropped()
        with waiting():
            self.pause.wait(max(time.monotonic() - began, REST_SECONDS))
        self.pause.clear()

    def _gather(self) -> None:
        with waiting():
            if self._notebook.has_some.wait(GATHER_SECONDS if self._locked else IDLE_SECONDS):
                self._notebook.is_urgent.wait(GATHER_SECONDS)
        self._batch, self._locked = self._locked + self._notebook.take(), []

    def _write(self) -> None:
        try:
            locked = self._store.say(self._batch)
            self._is_failing = False
        except Exception as error:
            if is_database_away(error):
                raise
            tidy()
            locked = self._write_one_by_one()
        self._locked = [said for said in self._batch if said.key in locked][-MOST_TRIED_AGAIN:]
        self._batch = []

    def _write_one_by_one(self) -> set[AttemptKey]:
        """Of one attempt it cannot be stored: that of the others is."""
        locked: set[AttemptKey] = set()
        for said in self._batch:
            try:
                locked |= self._store.say([said])
            except Exception as error:
                if is_database_away(error):
                    raise
                self._failed(error)
        return locked

    def _failed(self, error: Exception) -> None:
        """Told once: a table that is missing stays so."""
        if not self._is_failing:
            logger.warning("What jobs say to worker %s cannot be stored; they go on: %s", self._worker, log_text(error))
        self._is_failing = True
        tidy()

    def _report_dropped(self) -> None:
        dropped = self._notebook.dropped - self._reported
        if dropped:
            self._reported += dropped
            text = "Worker %s dropped %d log lines of jobs: the database did not take them in time."
            logger.warning(text, self._worker, dropped)
