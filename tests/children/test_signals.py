"""A call that does not stop gets SIGTERM, then the grace, and then SIGKILL."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from django_jobchains.children import pooled_child
from django_jobchains.children.pooled_child import AbortWatch
from django_jobchains.handlers.abort_signal import AbortReason, AbortSignal
from django_jobchains.isolation import Isolation, Level
from django_jobchains.pools import Call, PooledChild
from tests.support.waiting import until

GRACE_SECONDS = 1000


class RecordedPeer:
    """A child process that never replies. It records what is sent to it, and how long its caller waits for it."""

    level: Level = "process"
    pid = 1
    is_alive = True
    rss = 0

    def __init__(self) -> None:
        self.all: list[str | float] = []

    def send(self, message: Any) -> None: ...
    def withdraw(self) -> set[int]:
        return set()

    def abort(self, id: int, reason: AbortReason, part: str | None) -> None:
        self.all.append("abort")

    def receive(self, timeout: float | None) -> None:
        self.all.append(round(timeout or 0, -2))

    def terminate(self) -> None:
        self.all.append("SIGTERM")

    def kill(self) -> None:
        self.all.append("SIGKILL")

    def end(self) -> None: ...


@pytest.fixture
def peer() -> RecordedPeer:
    return RecordedPeer()


@pytest.fixture
def call(peer: RecordedPeer) -> Call:
    isolation = Isolation("process", grace_seconds=GRACE_SECONDS)
    return PooledChild(peer, key="default", isolation=isolation, next_request_id=lambda: 1).start("module:function")


@pytest.fixture
def signal(monkeypatch: pytest.MonkeyPatch, peer: RecordedPeer) -> AbortSignal:
    """A signal whose watch does not wait. The times are recorded instead."""

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            peer.all.append(timeout or 0)
            return False

    patched = SimpleNamespace(Event=Event, Thread=threading.Thread, Lock=threading.Lock)
    monkeypatch.setattr(pooled_child, "threading", patched)
    return AbortSignal()


def test_a_call_past_its_timeout_has_the_grace_to_end(peer: RecordedPeer, call: Call) -> None:
    call.stop(GRACE_SECONDS)
    assert peer.all[:3] == ["SIGTERM", GRACE_SECONDS, "SIGKILL"]


def test_an_aborted_call_has_half_of_the_grace_before_each_signal(
    peer: RecordedPeer, call: Call, signal: AbortSignal
) -> None:
    with AbortWatch(call, signal, GRACE_SECONDS):
        signal.abort("cancelled")
        until(lambda: "SIGKILL" in peer.all)
    assert peer.all == ["abort", GRACE_SECONDS / 2, "SIGTERM", GRACE_SECONDS / 2, "SIGKILL"]


def test_a_call_that_ends_gets_no_signal(peer: RecordedPeer, call: Call, signal: AbortSignal) -> None:
    watch = AbortWatch(call, signal, GRACE_SECONDS)
    call.abort = lambda reason: watch.__exit__(None, None, None)  # type: ignore[method-assign, assignment, misc]
    with watch:
        signal.abort("cancelled")
        until(lambda: peer.all and not any(each.name == "jobchains-abort-watch" for each in threading.enumerate()))
    assert peer.all == [GRACE_SECONDS / 2]
