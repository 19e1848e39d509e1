"""Runs the periodic tasks of a worker, and logs failures that must not stop its work."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from logging import getLogger
from typing import Protocol, TypeVar

from django_jobchains.db.connections import repair_connections
from django_jobchains.db.setup import is_column_missing, is_table_missing
from django_jobchains.notifications.base import WarningThrottle
from django_jobchains.store import Store
from django_jobchains.store.errors import is_database_away, is_lock_timeout
from django_jobchains.text.errors import log_error, log_text
from django_jobchains.worker.threads import waiting

logger = getLogger("django_jobchains")


class FailureLog:
    """Logs failures. ``text``: the template of the warning, with the worker's name and the error.

    Repeated failures are not logged, because an unavailable database is reported by other threads as well.
    """

    def __init__(self, text: str, worker: str) -> None:
        self._text = text
        self._worker = worker
        #: Whether the last try failed.
        self.is_failing = False

    def failed(self, error: Exception) -> None:
        if not self.is_failing:
            logger.warning(self._text, self._worker, log_text(error))
        self.is_failing = True
        repair_connections(error)

    def succeeded(self) -> None:
        self.is_failing = False


class Named(Protocol):
    @property
    def name(self) -> str: ...


NamedT = TypeVar("NamedT", bound=Named)


@dataclass(eq=False)
class RecordFailures:
    """Logs errors with the records of single models. ``text``: the template, with the name and the error."""

    text: str
    store: Store
    _throttles: defaultdict[str, WarningThrottle] = field(default_factory=lambda: defaultdict(WarningThrottle))

    def each(self, models: Iterable[NamedT], call: Callable[[NamedT], object]) -> None:
        """Make the call for each model, even if the call for an earlier one failed."""
        for model in models:
            try:
                call(model)
            except Exception as error:
                self.failed(model.name, error)

    def failed(self, name: str, error: Exception) -> None:
        """Log an error. Raise it if there is no connection any more, because calls for other models would fail as well.

        After a failed transaction, Django has already connected again if the database responds.
        """
        repair_connections(error)
        if is_database_away(error) and self.store.connection.connection is None:
            raise error
        if self._throttles[name].allows():
            self._log(name, error)

    def _log(self, name: str, error: Exception) -> None:
        if is_table_missing(error) or is_column_missing(error):
            remedy = f"Run 'manage.py migrate --database {self.store.using}'. No restart is needed."
            logger.warning(self.text, name, f"{log_text(error)}. {remedy}")
        elif is_lock_timeout(error) or is_database_away(error):
            logger.warning(self.text, name, log_text(error))
        else:
            log_error(logger, error, self.text, name)


class PeriodicTask:
    """Something that a worker does every ``seconds``, in steps. ``failures``: of a task that logs its own errors."""

    seconds: float
    #: The pause before the next step, if there is more to do.
    rest_seconds = 0.0
    failures: FailureLog | None = None

    @property
    def first_seconds(self) -> float:
        """The seconds until the first step."""
        return 0.0

    def step(self) -> bool:
        """Take a step, and return whether there is more to do."""
        raise NotImplementedError


class PeriodicTasks:
    """Runs tasks periodically, on one thread and so on one connection."""

    def __init__(self, *tasks: PeriodicTask) -> None:
        self._due_at = {task: time.monotonic() + task.first_seconds for task in tasks}
        #: The longest time between two tasks.
        self.seconds = min(task.seconds for task in tasks)
        #: When the database last responded.
        self.reached_at: float | None = None
        self.pause = threading.Event()

    def step(self) -> None:
        """Run the tasks that are due, even if one of them raises an error."""
        errors: list[BaseException] = []
        for task in self._due_at:
            if time.monotonic() >= self._due_at[task]:
                try:
                    self._run(task)
                except BaseException as error:
                    errors.append(error)
                    repair_connections(error)  # The next task uses the same connection.
        for other in errors[1:]:
            logger.warning("Another periodic task failed as well, and is retried: %s", log_text(other))
        if errors:
            raise errors[0]
        with waiting():
            self.pause.wait(max(min(self._due_at.values()) - time.monotonic(), 0))
        self.pause.clear()

    def run_soon(self, task: PeriodicTask, seconds: float = 0.0) -> None:
        """Run a task now or in some seconds, or once more if it is running. Can be called from any thread."""
        self._due_at[task] = min(self._due_at[task], time.monotonic() + seconds)
        self.pause.set()

    def _run(self, task: PeriodicTask) -> None:
        self._due_at[task] = time.monotonic() + task.seconds  # Set before the step, because of run_soon.
        has_more = True
        try:
            has_more = task.step()
        finally:
            if has_more:
                self._due_at[task] = time.monotonic() + task.rest_seconds
        if task.failures is None or not task.failures.is_failing:
            self.reached_at = time.monotonic()
