import pytest

from django_jobchains.notifications import KINDS
from django_jobchains.notifications.hints import RESYNC_HINTS
from django_jobchains.testing.contracts import ReceivedHints
from tests.support.clocks import Clock
from tests.support.waiting import until


class Listening(ReceivedHints):
    """The hints that a listener has received."""

    def __init__(self, notifier, kinds):
        super().__init__()
        self.listener = notifier.listen(self, kinds)

    def until_resynced(self, times=1):
        until(lambda: self.hints == [*RESYNC_HINTS] * times, what=lambda: self.hints)


@pytest.fixture
def listen():
    """Return a function that listens until the end of the test. By default, it waits for the connection."""
    started = []

    def listen(notifier, kinds=KINDS, *, is_waiting=True):
        started.append(Listening(notifier, kinds))
        if is_waiting:
            until(lambda: started[-1].listener.is_alive)
        return started[-1]

    yield listen
    for each in started:
        each.listener.close()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in ("notifications.hints", "worker.claim_wait"):
        monkeypatch.setattr(f"django_jobchains.{module}.time", clock)
    return clock
