"""What the tests of a store have in common: how one is made, and several connections to its database."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_jobchains.store import Store, get_store
from django_jobchains.testing.contracts.actors import Actor

#: Marks a test of several connections, which commits. Only the tables of this app are emptied after it.
committing = pytest.mark.django_db(transaction=True, available_apps=["django_jobchains"])


@pytest.mark.django_db
class StoreTests:
    #: Whoever writes holds up only those who want the same rows, and a claim passes by what is locked. False: one
    #: transaction writes at a time.
    locks_rows = True

    def make(self) -> Store:
        """The store; as ``JOBCHAINS["STORE"]`` says if nothing else is said here."""
        return get_store()

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        self._actors: list[Actor] = []
        store = self.make()
        yield store
        while self._actors:
            self._actors.pop().end()
        store.ahead_seconds = 0

    @pytest.fixture
    def _locks_rows(self) -> None:
        if not self.locks_rows:
            pytest.skip("one transaction writes at a time")

    def holding(self, store: Store, call: Callable[[], Any]) -> Actor:
        """An actor that has made its call and has not committed it."""
        return self._started(Actor(store.using, call, holds=True)).until_stopped()

    def waiting(self, store: Store, call: Callable[[], Any]) -> Actor:
        """An actor that waits for a lock, or is through."""
        return self._started(Actor(store.using, call)).until_settled()

    def elsewhere(self, store: Store, call: Callable[[], Any]) -> Any:
        """What the call returns on another connection. It must not wait for anybody."""
        return self._started(Actor(store.using, call)).result()

    def _started(self, actor: Actor) -> Actor:
        self._actors.append(actor)
        return actor.start()
