from typing import Any

import pytest

from django_jobchains.processors import get_registry
from django_jobchains.store import get_store
from tests.attempts.conftest import second_alias
from tests.support import notifiers as recording
from tests.support.chains import mail, ship
from tests.support.connections import end_all
from tests.support.workers import events, make_worker, processors, registry, start_worker

__all__ = ("events", "make_worker", "processors", "registry", "second_alias", "start_worker")


@pytest.fixture
def store():
    """Return the store of the default database. The test itself must request database access."""
    return get_store()


@pytest.fixture
def sent():
    """Yield the published hints, each entry the database alias and the subjects of hints sent together."""
    recording.sent.clear()
    with recording.notifier("RecordingNotifier"):
        yield recording.sent
    recording.sent.clear()


@pytest.fixture(autouse=True)
def _declared_types(monkeypatch):
    declared: dict[str, Any] = {ship.name: ship, mail.name: mail}
    monkeypatch.setattr(get_registry(), "declared", declared)


@pytest.fixture(autouse=True)
def _end_actors():
    yield
    end_all()
