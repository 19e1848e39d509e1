import pytest
from django.db import connection

from django_jobchains.notifications import waiting
from tests.waiting.waiters import IN_PROCESS, ChainQueries, end_all


@pytest.fixture(autouse=True)
def _close_watcher(monkeypatch):
    """End the watcher's thread before and after each test."""
    if connection.vendor == "postgresql":  # a listener is closed between two ticks
        monkeypatch.setattr("django_jobchains.notifications.postgres.TICK_SECONDS", 0.05)
    waiting.get_watcher("default").close(10)
    yield
    end_all()
    waiting.get_watcher("default").close(10)


@pytest.fixture
def queries(monkeypatch):
    return ChainQueries(monkeypatch)


@pytest.fixture
def no_poll(monkeypatch):
    """Poll so rarely that, within a test, only hints cause queries."""
    monkeypatch.setattr(waiting, "POLL_SECONDS", 1_000)


@pytest.fixture
def quick_poll(monkeypatch):
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.05)


@pytest.fixture
def in_process(settings):
    """Use hints within this process, where no hint about another commit can replace a missing one."""
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}, "REAP_SECONDS": 0.05}
