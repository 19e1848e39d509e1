"""Finds tasks of Django's framework that no jobs module declares, by their stored names, while a worker runs."""

import random
import time
from collections.abc import Callable
from logging import getLogger
from threading import Lock

from django.core.exceptions import ImproperlyConfigured

from django_jobchains.db.connections import close_thread_connections
from django_jobchains.declare.policies import AttemptPolicy, resolve
from django_jobchains.exceptions import ProcessorNotFound, TaskNotImported
from django_jobchains.notifications import EVERY, Hint
from django_jobchains.text.errors import log_error, log_text
from django_jobchains.worker.heartbeat import Heartbeat
from django_jobchains.worker.maintenance import PeriodicTask
from django_jobchains.worker.options import WorkerContext, is_served

logger = getLogger("django_jobchains")

#: The shortest time between two queries because of hints. On SQLite every commit is such a hint.
HINT_SECONDS = 1.0
#: How long the jobs of a task that cannot be imported here are left to other workers. During a deployment, workers of
#: the old version cannot import tasks of the new one.
GRACE_SECONDS = 300.0

Serve = Callable[[str, AttemptPolicy], None]


class TaskFinder(PeriodicTask):
    """A periodic task that serves the tasks whose names are in the table, at each poll or after a hint about a new one.

    A task that cannot be imported is left to other workers for ``GRACE_SECONDS`` after a job of it was first due. Then,
    unless a live worker serves it, its jobs are claimed to fail with the reason.

    ``serve`` and ``withdraw``: claim jobs of a type from now on, and no more.
    """

    def __init__(
        self, context: WorkerContext, heartbeat: Heartbeat, serve: Serve, withdraw: Callable[[str], None]
    ) -> None:
        self._context = context
        self._options = context.options
        self._heartbeat = heartbeat
        self._serve = serve
        self._withdraw = withdraw
        self.seconds: float = context.options.poll_seconds
        self._looked_at = -HINT_SECONDS
        self._is_hinted = False
        #: A worker that ends when nothing is due also looks for tasks on its main thread.
        self._lock = Lock()
        #: Why tasks cannot be imported here, by the names of their types, and when their jobs may be failed.
        self._missing: dict[str, TaskNotImported] = {}
        self._fails_at: dict[str, float] = {}
        #: Names that no task of this project can have, or whose tasks cannot run in this worker.
        self._foreign: set[str] = set()

    def on_hint(self, hint: Hint) -> float | None:
        """Return how soon to take a step because of a hint, or None if it is not about a new task."""
        is_about_all = hint.kind == "job_scheduled" and hint.subject == EVERY
        if not (is_about_all or (hint.kind == "job_scheduled" and self._is_new(hint.subject))):
            return None
        self._is_hinted = True
        return max(self._looked_at + HINT_SECONDS - time.monotonic(), 0.0)

    def step(self) -> bool:
        """Find tasks. Returns True, because there is always a next step, after ``rest_seconds``."""
        self._is_hinted = False  # Before the query, so that later hints cause another.
        try:
            self.find()
        finally:
            close_thread_connections()  # The next step is a minute later.
        seconds = [at - time.monotonic() for at in self._fails_at.values()]
        longest = self.seconds * random.uniform(0.8, 1)  # noqa: S311 - jitter
        self.rest_seconds = HINT_SECONDS if self._is_hinted else max(min([longest, *seconds]), HINT_SECONDS)
        return True

    def find(self, grace_seconds: float = GRACE_SECONDS) -> bool:
        """Serve new tasks, and return whether there were any."""
        with self._lock:
            self._looked_at = time.monotonic()
            found = [self._find(name) for name in sorted(self._context.store.task_names.read()) if self._is_new(name)]
            return any([*found, *[self._handle_missing(name, grace_seconds) for name in list(self._missing)]])

    def _is_new(self, name: str) -> bool:
        known = name in self._options.policies or name in self._missing or name in self._foreign
        return not known and is_served(name, self._options.types)

    def _find(self, name: str) -> bool:
        registry = self._options.registry
        try:
            processor = registry.processor(name)
        except ProcessorNotFound:  # A task of a backend that this project does not have.
            self._foreign.add(name)
            return False
        except TaskNotImported as error:
            self._missing[name] = error
            return False
        try:
            self._serve(name, resolve(*processor.policies, self._options.own_policy))
        except ImproperlyConfigured as error:  # One task must not stop the others.
            log_error(logger, error, "The task %s is not served by this worker: %s", name)
            self._foreign.add(name)
            return False
        return True

    def _handle_missing(self, name: str, grace_seconds: float) -> bool:
        """Decide about the jobs of a task that cannot be imported here. Return whether they are now claimed to fail."""
        if any(name in worker.type_names for worker in self._heartbeat.live_peers()):
            self._fails_at.pop(name, None)
            if name in self._options.missing:
                self._withdraw(name)
            return False
        seconds = self._context.store.jobs.next_due({name: 1.0}, self._options.queues)
        if name in self._options.missing or seconds is None or seconds > 0:
            return False
        error, now = self._missing[name], time.monotonic()
        if name not in self._fails_at:
            self._fails_at[name] = now + grace_seconds
            if grace_seconds:
                text = "%s Its jobs are left to other workers for %.0f seconds, and then fail."
                logger.warning(text, log_text(error), grace_seconds)
        if now < self._fails_at[name]:
            return False
        from django_jobchains.tasks_backend import load_missing_task

        processor = load_missing_task(self._options.registry, name, error)
        self._options.missing |= {name}
        self._serve(name, resolve(*processor.policies, self._options.own_policy))
        del self._fails_at[name]
        return True
