"""Logs the first failure of a part of the worker that is retried, and not the failures that follow it."""

from logging import getLogger

from django_jobchains.db.connections import repair_connections
from django_jobchains.text.errors import log_text

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
        repair_connections()

    def succeeded(self) -> None:
        self.is_failing = False
