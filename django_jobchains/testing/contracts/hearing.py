"""What the tests of a notifier have in common: how one is made, what it can do, and what was heard."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from django_jobchains.notifications import EVERY, Hint, Listener, Notifier, job_scheduled
from django_jobchains.testing.contracts.waiting import until

SHIP, MAIL = job_scheduled("shop.ship"), job_scheduled("shop.mail")


class Heard:
    """Hints, in the order in which they came: a callback for ``listen``."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def __call__(self, hint: Hint) -> None:
        self.hints.append(hint)

    def of_a_type(self) -> list[Hint]:
        """Those about something, not "look for yourself"."""
        return [hint for hint in self.hints if hint.subject != EVERY]

    def looks(self) -> list[Hint]:
        return [hint for hint in self.hints if hint.subject == EVERY]


class NotifierTests:
    """Mark the class with ``django_db(transaction=True)`` if the notifier uses the database."""

    #: Hints arrive as they were sent. False: whoever listens is told to look after any commit, whatever it was.
    carries_hints = True
    #: Whether anybody is ever called. False: workers poll.
    calls_back = True
    #: ``take`` shares the jobs of a hint out. False: it may say None, "not known", whatever it is asked.
    has_budgets = False

    def make(self) -> Notifier:
        """A new notifier. Two of them stand for two processes."""
        raise NotImplementedError

    def interrupt(self) -> AbstractContextManager[None] | None:
        """The server goes away as the block begins, and is back when it has ended; None: the test is left out."""
        return None

    @pytest.fixture(autouse=True)
    def _closes_listeners(self) -> Iterator[None]:
        self.listeners: list[Listener] = []
        self._notifiers: list[Notifier] = []
        yield
        for listener in self.listeners:
            listener.close()
        for notifier in self._notifiers:
            notifier.close()

    @pytest.fixture
    def _hints_arrive(self) -> None:
        if not self.carries_hints:
            pytest.skip("carries no hints")

    def notifier(self) -> Notifier:
        """A new one, closed after the test."""
        self._notifiers.append(self.make())
        return self._notifiers[-1]

    def listen(self, notifier: Notifier, heard: Callable[[Hint], None], **options: Any) -> Listener:
        """Listens, and waits until hints arrive."""
        listener = notifier.listen(heard, **options)
        self.listeners.append(listener)
        until(lambda: listener.is_alive)
        return listener

    def close(self, listener: Listener) -> None:
        self.listeners.remove(listener)
        listener.close()
