"""Calls ``pre_dequeue`` on a thread, so that a slow hook does not delay the claim loop and all other types."""

import threading
import time
from collections.abc import Callable
from logging import getLogger
from typing import Any

from django.db.models import Q

from django_jobchains.attempts.record_attempt import call_hook
from django_jobchains.notifications.base import WarningThrottle
from django_jobchains.records.declarations import RecordType
from django_jobchains.text.errors import log_error
from django_jobchains.worker.threads import waiting

logger = getLogger("django_jobchains")

#: How long an answer is used: a budget may change while no slot is free.
ANSWER_SECONDS = 1.0
#: The condition that records must meet to be dequeued. False: no record is dequeued.
Condition = Q | bool


class Conditions:
    """The conditions for the next record of a model, each from one call of ``pre_dequeue``.

    ``on_answer``: called when there is a new answer. The claim loop calls ``ask`` and ``take``, a thread calls
    ``step``.
    """

    def __init__(self, kind: RecordType, on_answer: Callable[[], object]) -> None:
        self.name = kind.name
        self._kind = kind
        self._on_answer = on_answer
        self._question = threading.Event()
        self._answer: Condition | None = None
        self._answered_at = 0.0
        self._throttle = WarningThrottle()
        #: Whether the thread has not answered yet.
        self.is_asked = False

    @property
    def has_answer(self) -> bool:
        return self._answer is not None and time.monotonic() - self._answered_at < ANSWER_SECONDS

    def ask(self) -> None:
        self.is_asked = True
        self._question.set()

    def take(self) -> Condition:
        """Return the answer, once. Without an answer, nothing is dequeued."""
        answer, self._answer = self._answer, None
        return answer is not None and answer

    def step(self) -> None:
        """Wait for a question, and answer it."""
        with waiting():
            self._question.wait()
        if self.is_asked:
            answer = condition_of(self._kind, self._throttle)
            self._question.clear()  # Not earlier: after an error, the next step answers the same question.
            self._answer, self._answered_at = answer, time.monotonic()
            self.is_asked = False  # Cleared last, so that there is always a question or an answer.
            self._on_answer()

    def interrupt(self) -> None:
        """End the wait for a question."""
        self._question.set()


def condition_of(kind: RecordType, throttle: WarningThrottle) -> Condition:
    """Return the result of ``pre_dequeue``. An error is logged, and nothing is dequeued."""
    if "pre_dequeue" not in kind.hooks:
        return True
    results: list[Any] = []
    error = call_hook(lambda: results.append(kind.processor.pre_dequeue()))
    result = results[0] if results else False
    if error is None and not isinstance(result, bool | Q):
        error = TypeError(f"pre_dequeue() returned {result!r:.50}, neither a bool nor a Q")
    if error is not None:
        if throttle.allows():
            log_error(logger, error, "No record of %r is dequeued: %s", kind.name)
        return False
    return result
