"""Slots that wait: who is called when there is work, and who comes."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_jobchains.worker.slots import Slots
from tests.worker.waiting import until

COUNT = 4


class Try:
    """An attempt of nothing but a function."""

    is_disowned = False

    def __init__(self, run: Callable[[], object]) -> None:
        self.run = run

    def outcomes(self) -> list[Any]:
        self.run()
        return []


@pytest.fixture
def slots() -> Iterator[Slots]:
    """All of them waiting."""
    slots = Slots(
        COUNT,
        worker="test",
        on_outcome=lambda outcome: None,
        on_room=lambda: None,
        on_broken=lambda attempt: None,
        give_up=lambda: None,
        most_stuck=0,
    )
    slots.start()
    until(lambda: slots._waiting == COUNT)
    yield slots
    slots.close()
    for slot in slots._slots:
        slot.thread._thread.join(10)


def test_many_attempts_call_one_slot(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    with slots._changed:  # no slot can come yet
        with monkeypatch.context() as patched:
            patched.setattr(slots._changed, "notify", lambda n=1: called.append(n))
            for _ in range(COUNT):
                slots.put([Try(int)] * 3)  # type: ignore[list-item]
        slots._changed.notify()
    assert called == [1]
    until(lambda: slots.is_idle)


def test_while_attempts_take_their_time_every_slot_comes(slots: Slots) -> None:
    meeting = threading.Barrier(COUNT, timeout=20)
    slots.put([Try(meeting.wait) for _ in range(COUNT)])  # type: ignore[misc]
    until(lambda: slots.is_idle)
    assert not meeting.broken


def test_a_slot_that_waited_in_vain_does_not_keep_others_from_being_called(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_jobchains.worker.slots.IDLE_SECONDS", 0.001)
    for _ in range(200):
        done = threading.Event()
        slots.put([Try(done.set)])  # type: ignore[list-item]
        assert done.wait(20)


@pytest.mark.parametrize(("seconds", "ahead"), [(0.001, 100), (0.0199, 10), (0.049, 4), (0.06, 0), (10, 0)])
def test_jobs_are_claimed_ahead_only_while_attempts_are_short(slots: Slots, seconds: float, ahead: int) -> None:
    assert slots.room() == COUNT  # of how long they take nothing is known yet
    for _ in range(200):
        slots.count_seconds(seconds)
    assert slots.room() == COUNT + ahead
