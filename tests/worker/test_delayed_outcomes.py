"""Outcomes delayed by locks are retried for a limited share of the time, and none is forgotten."""

from types import SimpleNamespace
from typing import Any

import pytest

from django_jobchains.processors import RunningJob
from django_jobchains.worker import end_writer
from django_jobchains.worker.end_writer import MAX_RETRY_SECONDS, DelayedEnds
from tests.support.clocks import Clock
from tests.support.connections import Actor, holding

#: This many attempts to write an outcome take longer than the pause before the worker's second query.
TRIES_WHILE_LOCKED = 7


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(end_writer, "time", clock)
    return clock


def outcome(number: int) -> Any:
    return SimpleNamespace(job=SimpleNamespace(id=number, key=(number, 1), type_name="shop.ship"))


def test_delayed_outcomes_are_retried_in_the_order_of_their_due_times_for_a_limited_time(clock):
    delayed, tried = DelayedEnds[Any](lambda *reported: None), list[int]()

    def write(outcome: Any) -> None:
        tried.append(outcome.job.id)
        clock.now += MAX_RETRY_SECONDS * 0.4
        delayed.add(outcome)

    for number in range(5):
        delayed.add(outcome(number))
        clock.now += 0.001
    clock.now += 1
    delayed.retry(write)
    assert tried == [0, 1, 2]
    delayed.retry(write)
    assert tried == [0, 1, 2, 3, 4, 0]


@pytest.mark.postgresql
def test_delayed_write_of_the_last_outcome_wakes_the_claim_loop(processors, make_worker, monkeypatch):
    """The claim loop polls once a minute, and has already found that the outcome is still to be written."""
    others: list[Actor] = []
    tries: list[Any] = []
    add = DelayedEnds.add

    @processors.register("worker.locked")
    def locked(job: RunningJob[Any]) -> str:
        others.append(holding(lambda store: store.attempts.lock(job.id)))
        return "done"

    def add_and_release(self: DelayedEnds[Any], outcome: Any, error: str = "") -> None:
        add(self, outcome, error)
        tries.append(outcome)
        if len(tries) == TRIES_WHILE_LOCKED:
            others.pop().result()

    monkeypatch.setattr(DelayedEnds, "add", add_and_release)
    chain = locked.enqueue()
    make_worker().run_until_idle(timeout=30)
    assert chain.refresh().output == "done"
