"""Writes the log lines and progress of running jobs, about once a second and soon after the end of an attempt."""

import threading
import time
from logging import getLogger

from django_jobchains.db.connections import close_thread_connections, repair_connections
from django_jobchains.store.errors import is_database_away
from django_jobchains.store.rows import AttemptKey, LogEntries
from django_jobchains.worker.maintenance import FailureLog
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.threads import waiting

logger = getLogger("django_jobchains")

#: How long the first log line of a batch waits for more.
GATHER_SECONDS = 1.0
#: The shortest wait between two writes. After a write that took longer, the wait is as long as the write.
REST_SECONDS = 0.05
#: A thread that had nothing to write for this long closes its connection.
IDLE_SECONDS = 30.0
#: The limit of attempts whose log lines are kept because their jobs are locked.
MAX_LOCKED = 100


class LogWriter:
    """Writes on its own thread and connection, so that jobs with many log lines delay nothing else."""

    def __init__(self, context: WorkerContext) -> None:
        self._store = context.store
        self._log_buffer = context.log_buffer
        self._worker = context.worker
        #: Taken from the log_buffer, and not written yet.
        self._batch: list[LogEntries] = []
        #: Entries of locked jobs, to be written with the next batch.
        self._locked: list[LogEntries] = []
        self._reported = 0
        self._failures = FailureLog(
            "Worker %s cannot store the log lines of its jobs, which continue to run: %s", context.worker
        )
        self.pause = threading.Event()

    @property
    def is_drained(self) -> bool:
        return not (self._batch or self._locked or self._log_buffer.has_entries.is_set())

    def flush(self) -> None:
        """Write everything now. Can be called from any thread."""
        self._log_buffer.is_urgent.set()
        self._log_buffer.has_entries.set()
        self.pause.set()

    def step(self) -> None:
        """Wait for something to write, and write some of it. A batch is kept while the database is unavailable."""
        if not self._batch:
            self._gather()
        if not self._batch:
            close_thread_connections()
            return
        began = time.monotonic()
        self._write()
        self._report_dropped()
        with waiting():
            self.pause.wait(max(time.monotonic() - began, REST_SECONDS))
        self.pause.clear()

    def _gather(self) -> None:
        with waiting():
            if self._log_buffer.has_entries.wait(GATHER_SECONDS if self._locked else IDLE_SECONDS):
                self._log_buffer.is_urgent.wait(GATHER_SECONDS)
        self._batch, self._locked = self._locked + self._log_buffer.take(), []

    def _write(self) -> None:
        try:
            locked = self._store.logs.write(self._batch)
            self._failures.succeeded()
        except Exception as error:
            if is_database_away(error):
                raise
            repair_connections()
            locked = self._write_one_by_one()
        self._locked = [entries for entries in self._batch if entries.key in locked][-MAX_LOCKED:]
        self._batch = []

    def _write_one_by_one(self) -> set[AttemptKey]:
        """Write attempt by attempt, so that one bad entry does not lose the rest."""
        locked: set[AttemptKey] = set()
        for entries in self._batch:
            try:
                locked |= self._store.logs.write([entries])
            except Exception as error:
                if is_database_away(error):
                    raise
                self._failures.failed(error)
        return locked

    def _report_dropped(self) -> None:
        dropped = self._log_buffer.dropped - self._reported
        if dropped:
            self._reported += dropped
            text = "Worker %s dropped %d log lines of jobs, because the database did not store them in time."
            logger.warning(text, self._worker, dropped)
