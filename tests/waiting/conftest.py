from collections.abc import Iterator

import pytest
from django.db import connection

from django_jobchains import waiting
from tests.databases import memory, private_memory
from tests.waiting.waiters import Looks, end_all
from tests.worker.fixtures import events, make_worker, processors, registry, start_worker, store

__all__ = ("events", "make_worker", "memory", "private_memory", "processors", "registry", "start_worker", "store")


@pytest.fixture(autouse=True)
def _nobody_waits_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins without the thread that looks, and leaves none."""
    if connection.vendor == "postgresql":  # a listener is closed between two ticks
        monkeypatch.setattr("django_jobchains.notifications.postgres.TICK_SECONDS", 0.05)
    waiting.get_watch("default").close(10)
    yield
    end_all()
    waiting.get_watch("default").close(10)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next look that no hint asks for comes later than any deadline of a test."""
    monkeypatch.setattr(waiting, "POLL_SECONDS", 1_000)


@pytest.fixture
def quick_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.05)
