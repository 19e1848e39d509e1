"""The base of the tests of a store: creates it, and opens several connections to its database."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_jobchains.store import Store, get_store
from django_jobchains.testing.contracts.concurrency import Actor

#: Marks a test that commits, because it uses several connections. Only the tables of this app are emptied after it.
committing = pytest.mark.django_db(transaction=True, available_apps=["django_jobchains"])


@pytest.mark.django_db
class StoreTests:
    #: True if transactions wait for each other only if they write to the same rows, and a claim skips locked rows.
    #: False if one transaction writes at a time.
    locks_rows = True

    def make(self) -> Store:
        """Return the store. By default, it is the one in the setting ``JOBCHAINS["STORE"]``."""
        return get_store()

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        self._actors: list[Actor] = []
        store = self.make()
        yield store
        while self._actors:
            self._actors.pop().end()
        store.db.ahead_seconds = 0

    @pytest.fixture
    def _locks_rows(self) -> None:
        if not self.locks_rows:
            pytest.skip("one transaction writes at a time")

    def holding(self, store: Store, call: Callable[[], Any]) -> Actor:
        """Return an actor that has made its call and has not committed it."""
        return self._started(Actor(store.using, call, holds=True)).until_stopped()

    def waiting(self, store: Store, call: Callable[[], Any]) -> Actor:
        """Return an actor that waits for a lock, or has returned."""
        return self._started(Actor(store.using, call)).until_blocked_or_ended()

    def elsewhere(self, store: Store, call: Callable[[], Any]) -> Any:
        """Return the result of a call on another connection. It must not wait for a lock."""
        return self._started(Actor(store.using, call)).result()

    def _started(self, actor: Actor) -> Actor:
        self._actors.append(actor)
        return actor.start()
