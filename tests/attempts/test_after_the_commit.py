"""An error after the commit neither undoes nor repeats the job, because its row says that it is completed."""

import pytest
from django.db import OperationalError, transaction

from django_jobchains import chains
from django_jobchains.attempts.transaction import AttemptTransaction
from tests.support.attempts import committed, on_own_connection
from tests.support.scenario import JOBS, RECORDS, complete, effects, kinds, write

pytestmark = committed

LOGGED = "An error after the commit does not change that"
commit = AttemptTransaction.commit


def lose_the_reply(transaction):
    commit(transaction)
    raise OperationalError("the reply was lost")


def cut_before(transaction):
    error = OperationalError("cut before the commit")
    transaction.roll_back(error)
    raise error


def fail_first(monkeypatch, first):
    """Replace the first commit of an attempt."""
    replacements = [first]

    def replaced(transaction):
        (replacements.pop() if replacements else commit)(transaction)

    monkeypatch.setattr(AttemptTransaction, "commit", replaced)


@pytest.fixture
def enqueue(scenario):
    """Enqueue jobs that write in ``complete()`` and continue, or a record that writes."""
    second = scenario.processors.register("second", entry=False)(lambda job: "done")

    def enqueue(in_completion=lambda: None):
        def first(jobs):
            yield complete(lambda: (write(jobs, "once")(), in_completion()))
            if scenario.kind not in RECORDS:
                continuations = [job.continue_with(second) for job in jobs]
                return continuations[0]

        return scenario.enqueue(first)

    return enqueue


def assert_completed_once(scenario, caplog):
    scenario.run()
    assert (scenario.states(), scenario.errors(), effects()) == ({"completed"}, {None}, ["once"])
    assert LOGGED in caplog.text
    if scenario.kind not in RECORDS:
        assert [[job.attempt for job in chain.jobs] for chain in scenario.made] == [[1, 1]] * len(scenario.made)


@kinds(*JOBS, *RECORDS)
def test_failing_on_commit_hook_neither_undoes_nor_repeats_the_job(scenario, enqueue, caplog):
    def fail():
        raise ValueError("a hook of the project")

    enqueue(lambda: transaction.on_commit(fail))
    assert_completed_once(scenario, caplog)


@kinds(*JOBS, *RECORDS)
def test_lost_reply_to_the_commit_neither_undoes_nor_repeats_the_job(scenario, enqueue, monkeypatch, caplog):
    fail_first(monkeypatch, lose_the_reply)
    enqueue()
    assert_completed_once(scenario, caplog)


@kinds(*JOBS, *RECORDS)
def test_job_whose_commit_failed_is_retried(scenario, enqueue, monkeypatch):
    fail_first(monkeypatch, cut_before)
    enqueue()
    scenario.run()
    [error] = scenario.errors()
    assert (scenario.states(), "cut before the commit" in error, effects()) == ({"retried"}, True, [])


@kinds("plain")
def test_completion_by_hand_is_not_mistaken_for_that_of_an_attempt_whose_commit_failed(
    scenario, enqueue, monkeypatch, caplog
):
    def fail(transaction):
        try:
            cut_before(transaction)
        finally:
            on_own_connection(chains.complete, chain.id, None)

    fail_first(monkeypatch, fail)
    [chain] = enqueue()
    scenario.run()
    assert (chain.refresh().status, len(chain.jobs), effects()) == ("completed", 1, [])
    assert LOGGED not in caplog.text
