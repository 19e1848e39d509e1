"""The base of the tests of a store: calls on other connections to its database."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_jobchains.store import Store, get_store
from tests.support.connections import Actor

#: Marks a test that commits, because it uses several connections. Only the tables of this app are emptied after it.
committing = pytest.mark.django_db(transaction=True, available_apps=["django_jobchains"])


@pytest.mark.django_db
class StoreTests:
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = get_store()
        yield store
        store.db.ahead_seconds = 0

    @pytest.fixture
    def _locks_rows(self, store: Store) -> None:
        if not store.db.locks_rows:
            pytest.skip("one transaction writes at a time")

    def holding(self, store: Store, call: Callable[[], Any]) -> Actor:
        """Return an actor that has made its call and has not committed it."""
        return Actor(lambda store: call(), holds=True).start().until_stopped()

    def waiting(self, store: Store, call: Callable[[], Any]) -> Actor:
        """Return an actor that waits for a lock, or has returned."""
        return Actor(lambda store: call()).start().until_blocked_or_ended()

    def elsewhere(self, store: Store, call: Callable[[], Any]) -> Any:
        """Return the result of a call on another connection. It must not wait for a lock."""
        return Actor(lambda store: call()).start().result()
