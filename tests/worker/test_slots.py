"""Which of the waiting slots wake up when there is work."""

import threading

import pytest

from django_jobchains.worker.claim_wait import WakeUp
from django_jobchains.worker.slots import Slots
from django_jobchains.worker.threads import OwnedThread
from tests.support.waiting import until
from tests.support.workers import context_for

COUNT = 4


class FakeAttempt:
    """An attempt that only calls a function."""

    is_detached = False

    def __init__(self, call):
        self._call = call

    def run(self):
        self._call()
        return []


@pytest.fixture
def slots():
    """Slots that are all waiting."""
    slots = Slots(context_for(slots=COUNT), None)  # no attempt has an outcome
    slots.start()
    until(lambda: slots._waiting == COUNT)
    yield slots
    slots.close()
    for slot in slots._slots:
        slot.thread._thread.join(10)


def test_many_attempts_wake_one_slot(slots, monkeypatch):
    notified = []
    with slots._changed:  # no slot can wake up yet
        with monkeypatch.context() as patched:
            patched.setattr(slots._changed, "notify", lambda n=1: notified.append(n))
            for _ in range(COUNT):
                slots.put([FakeAttempt(int)] * 3)
        slots._changed.notify()
    assert notified == [1]
    until(lambda: slots.is_idle)


@pytest.mark.parametrize("is_needed", [True, False])
def test_free_slot_wakes_the_claim_loop_only_if_it_needs_one(slots, is_needed):
    slots.context.wake.begin_query()
    slots.context.wake.needs_slots = is_needed
    slots.put([FakeAttempt(int)])
    until(lambda: slots.is_idle and slots._waiting == COUNT)
    assert slots.context.wake.will_query_soon == is_needed


def test_slot_that_becomes_free_during_a_query_wakes_the_claim_loop_only_if_it_needs_one():
    wake = WakeUp()
    wake.slot_is_free()
    wake.needs_slots = False
    assert not wake.will_query_soon
    wake.needs_slots = True
    assert wake.will_query_soon
    wake.begin_query()
    assert not wake.will_query_soon


def test_long_attempts_wake_every_slot(slots):
    meeting = threading.Barrier(COUNT, timeout=20)
    slots.put([FakeAttempt(meeting.wait) for _ in range(COUNT)])
    until(lambda: slots.is_idle)
    assert not meeting.broken


def test_slot_that_timed_out_does_not_prevent_others_from_waking_up(slots, monkeypatch):
    monkeypatch.setattr("django_jobchains.worker.slots.IDLE_SECONDS", 0.001)
    for _ in range(200):
        done = threading.Event()
        slots.put([FakeAttempt(done.set)])
        assert done.wait(20)


def test_another_slot_runs_what_follows_an_attempt_that_was_stuck(slots):
    released, followed = threading.Event(), threading.Event()

    def hang():
        released.wait(20)
        slots.follow(FakeAttempt(followed.set))

    stuck = FakeAttempt(hang)
    slots.put([stuck])
    until(lambda: stuck in slots.attempts())
    assert slots.write_off(stuck)
    until(lambda: slots._waiting == COUNT)
    released.set()
    assert followed.wait(20)
    until(lambda: slots.is_idle)
    assert not slots._following


def test_a_slot_runs_the_attempts_that_wait_one_after_another(slots, monkeypatch):
    """Between them it waits for nothing: while attempts are short, one wake-up is enough for many of them."""
    waits, done = [], threading.Event()
    monkeypatch.setattr(slots, "_notify_one", lambda: None)  # only the slot that is notified below may run
    monkeypatch.setattr(slots, "next", lambda slot: waits.append(slot) or Slots.next(slots, slot))
    slots.put([FakeAttempt(int) for _ in range(5)] + [FakeAttempt(done.set)])
    with slots._changed:
        slots._changed.notify()
    assert done.wait(20)
    until(lambda: slots.is_idle and len(waits) == 1)


@pytest.mark.parametrize("end", ["written off", "closed", "failed"])
def test_a_slot_that_is_replaced_or_closed_takes_no_attempt_that_waits(monkeypatch, end):
    monkeypatch.setattr(OwnedThread, "start", lambda thread: None)
    slots = Slots(context_for(slots=1), None)
    [slot] = slots._slots
    first, second = FakeAttempt(int), FakeAttempt(int)
    slots.put([first, second])
    assert slots.next(slot) is first
    if end == "written off":
        assert slots.write_off(first)
    elif end == "closed":
        slots.close()
    assert slots.done(slot, takes_next=end != "failed") is None
    assert [attempt for _, attempt in slots.backlog] == [second]
    assert slots.running == 0


@pytest.mark.parametrize(
    ("seconds", "ahead"), [(0.0001, 200), (0.0019, 105), (0.0199, 10), (0.049, 4), (0.06, 0), (10, 0)]
)
def test_jobs_are_claimed_ahead_only_while_attempts_are_short(slots, seconds, ahead):
    assert slots.room() == COUNT  # no duration is known yet
    for _ in range(200):
        slots.backlog.count_seconds(seconds)
    assert slots.room() == COUNT + ahead
