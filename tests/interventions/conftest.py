from collections.abc import Iterator
from typing import Any

import pytest

from django_jobchains.processors import get_registry
from django_jobchains.store import Store, get_store
from tests.attempts.conftest import second_alias
from tests.enqueueing import recording
from tests.interventions.chains_at import mail, ship
from tests.store.connections import end_all
from tests.worker.fixtures import events, make_worker, processors, registry, start_worker

__all__ = ("events", "make_worker", "processors", "registry", "second_alias", "start_worker")


@pytest.fixture
def store() -> Store:
    """The store of the database the suite runs on; the test itself marks its access to it."""
    return get_store()


@pytest.fixture
def sent() -> Iterator[list[tuple[str, set[str]]]]:
    """The hints of the test: the database alias, and the subjects of those that were sent together."""
    recording.sent.clear()
    with recording.notifier("RecordingNotifier"):
        yield recording.sent
    recording.sent.clear()


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    declared: dict[str, Any] = {ship.name: ship, mail.name: mail}
    monkeypatch.setattr(get_registry(), "declared", declared)


@pytest.fixture(autouse=True)
def _no_actor_survives() -> Iterator[None]:
    yield
    end_all()
