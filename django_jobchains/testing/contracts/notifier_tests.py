"""The base of the notifier tests: how a notifier is created, what it can do, and which hints were received."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from django_jobchains.notifications import EVERY, Hint, Listener, Notifier, job_scheduled
from django_jobchains.testing.contracts.concurrency import until

SHIP, MAIL = job_scheduled("shop.ship"), job_scheduled("shop.mail")


class ReceivedHints:
    """Records received hints in their order. An instance is a callback for ``listen``."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def __call__(self, hint: Hint) -> None:
        self.hints.append(hint)

    def of_a_type(self) -> list[Hint]:
        """Return the hints that name a subject."""
        return [hint for hint in self.hints if hint.subject != EVERY]

    def looks(self) -> list[Hint]:
        return [hint for hint in self.hints if hint.subject == EVERY]


class NotifierTests:
    """Mark the class with ``django_db(transaction=True)`` if the notifier uses the database."""

    #: Whether hints arrive as they were sent. False: after any commit, every listener is asked to query the database.
    carries_hints = True
    #: Whether listeners are ever called. False: workers poll.
    calls_back = True
    #: Whether ``take`` distributes the jobs of a hint. False: it may always return None, which means "unknown".
    has_budgets = False

    def make(self) -> Notifier:
        """Create a notifier. Tests create several, as several processes would."""
        raise NotImplementedError

    def interrupt(self) -> AbstractContextManager[None] | None:
        """Return a context manager that stops the server during its block. None skips the tests that need it."""
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
            pytest.skip("The notifier does not transmit hints.")

    def notifier(self) -> Notifier:
        """Create a notifier that is closed after the test."""
        self._notifiers.append(self.make())
        return self._notifiers[-1]

    def listen(self, notifier: Notifier, heard: Callable[[Hint], None], **options: Any) -> Listener:
        """Listen, and wait until the listener is connected."""
        listener = notifier.listen(heard, **options)
        self.listeners.append(listener)
        until(lambda: listener.is_alive)
        return listener

    def close(self, listener: Listener) -> None:
        self.listeners.remove(listener)
        listener.close()
