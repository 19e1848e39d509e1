"""Attempts that are sent to a child process together, behind one that the child is too busy to begin or to end."""

import os
import signal
from unittest import mock

import pytest

from django_jobchains import chains
from django_jobchains.attempts.job_attempt import Environment
from django_jobchains.attempts.outcome import Outcome, OutcomeKind
from django_jobchains.declare.policies import resolve
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.isolation import Isolation
from django_jobchains.worker.child_slots import ChildSlots
from django_jobchains.worker.isolated.isolated_attempt import ChildRun, IsolatedAttempt, RunEnd
from django_jobchains.worker.isolated.isolation_pool import IsolationPool
from django_jobchains.worker.isolated.messages import outcome_message, outcome_of_message
from django_jobchains.worker.slots import Slots
from tests.isolation.app.hostile_jobs import waits_if_asked
from tests.support.jobs import claim
from tests.support.waiting import until, until_completed
from tests.support.workers import completed, context_for


class SentAttempt:
    """An attempt, of which only the request matters: no child begins it."""

    jobs = ()

    def __init__(self):
        self.signal = AbortSignal()

    def request(self, *, is_first):
        return None

    def expect_begin(self):
        pass

    def forward_aborts(self, call):
        pass


@pytest.fixture
def pool():
    """A pool with one child, which the system does not run for now."""
    pool = IsolationPool(Isolation("process", strict=True), 1, "w")
    child = pool.acquire()
    pool.release(child)
    os.kill(child.pid, signal.SIGSTOP)
    yield pool
    os.kill(child.pid, signal.SIGCONT)
    pool.terminate()


def test_they_are_put_back_although_the_first_has_not_begun_either(pool):
    attempts, ends = [SentAttempt(), SentAttempt()], []
    assert list(ChildRun(attempts, pool, put_back=None, ended=ends.append).run()) == []
    assert [(list(end.left), end.ended) for end in ends] == [(attempts, 0)]


def test_they_are_then_sent_one_by_one_because_a_single_one_is_waited_for():
    slots = ChildSlots(Isolation("process", max_workers=1), Slots(context_for(slots=1), None))
    slots.backlog.put([SentAttempt(), SentAttempt()])
    slots._count(RunEnd((), 100, 0.1, 0.1))
    run = slots._next_run()
    assert len(run._attempts) == 2
    slots.backlog.put(run._attempts)
    slots._count(RunEnd((SentAttempt(),), 0, 0.05, 0.0))
    assert len(slots._next_run()._attempts) == 1


def test_a_run_whose_attempts_were_all_aborted_before_they_were_sent_does_not_count_as_slow():
    slots = ChildSlots(Isolation("process", max_workers=1), Slots(context_for(slots=1), None))
    slots._count(RunEnd((), 100, 0.1, 0.1))
    slots._count(RunEnd((), 0, 0.05, 0.0))
    slots.backlog.put([SentAttempt(), SentAttempt()])
    assert len(slots._next_run()._attempts) == 2


@pytest.mark.django_db
@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize(
    ("reason", "ending"), [("cancelled", "rescheduled"), ("error", "abandoned"), ("worker_stopping", "handed_back")]
)
def test_one_that_is_aborted_before_there_is_a_child_is_not_sent(processors, store, registry, reason, ending, others):
    processors.register("runs.late")(lambda job: None).enqueue()
    processor = registry.processor("runs.late")
    [job] = claim(store, types=["runs.late"])
    asked, pool, ends = AbortSignal(), mock.Mock(), []
    late = IsolatedAttempt([(job, asked)], Environment(processor, resolve(*processor.policies), store, registry, None))
    waiting = [SentAttempt() for _ in range(others)]
    child = pool.acquire.return_value
    pool.acquire.side_effect = lambda: (asked.abort(reason), child)[1]
    pool.attempts_left.return_value = None
    child.start_all.side_effect = lambda target, requests, on_message: [mock.Mock(is_withdrawn=True) for _ in requests]
    [outcome] = ChildRun([*waiting, late], pool, put_back=None, ended=ends.append).run()
    assert (outcome.job, outcome.ending) == (job, ending)
    assert [len(call.args[1]) for call in child.start_all.mock_calls] == [1] * others
    assert [end.left for end in ends] == [waiting]


def test_those_that_are_put_back_end_the_wait_of_the_claim_loop_which_returns_them_if_they_wait_for_long():
    slots = ChildSlots(Isolation("process", max_workers=1), Slots(context_for(slots=1), None))
    slots.context.wake.begin_query()
    slots._put_back([SentAttempt()])
    assert slots.context.wake.must_query


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, 1])
def test_those_behind_one_that_takes_long_run_in_another_child_or_another_worker(start_isolated, tmp_path, slots):
    for _ in range(3 - slots):
        start_isolated("--slots", str(slots), jobchains={"POLL_SECONDS": 60})
    chains.enqueue_many([waits_if_asked.item("") for _ in range(1000)])
    until(lambda: completed() == 1000, 60)  # Short handlers: from now on, several are sent together.
    gate = tmp_path / "gate"
    enqueued = chains.enqueue_many([waits_if_asked.item(str(gate) if number == 4 else "") for number in range(80)])
    until(lambda: completed() == 1079, 20, lambda: [chain.refresh().status for chain in enqueued])
    assert enqueued[4].refresh().status == "running"
    gate.touch()
    until_completed(enqueued[4])


def test_the_worker_learns_why_an_attempt_was_abandoned():
    sent = outcome_message(Outcome(None, OutcomeKind.ABANDONED, abandoned_reason="error"), 0)
    assert outcome_of_message(sent, [None], None, None).abandoned_reason == "error"
