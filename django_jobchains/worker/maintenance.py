"""Runs the periodic tasks of a worker: heartbeat, counts, reaping, unblocking and pruning."""

import threading
import time
from logging import getLogger

from django_jobchains.db.connections import repair_connections
from django_jobchains.text.errors import log_text
from django_jobchains.worker.failure_log import FailureLog
from django_jobchains.worker.threads import waiting

logger = getLogger("django_jobchains")


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
                    repair_connections()  # The next task uses the same connection.
        for other in errors[1:]:
            logger.warning("Another periodic task failed as well, and is retried: %s", log_text(other))
        if errors:
            raise errors[0]
        with waiting():
            self.pause.wait(max(min(self._due_at.values()) - time.monotonic(), 0))
        self.pause.clear()

    def run_soon(self, task: PeriodicTask) -> None:
        """Run a task now, or once more if it is running. Can be called from any thread."""
        self._due_at[task] = 0.0
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
