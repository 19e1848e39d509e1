"""An error after the commit neither undoes nor repeats the job, because its row says that it is completed."""

from django.db import OperationalError, transaction

from django_jobchains import chains
from django_jobchains.attempts.transaction import AttemptTransaction
from tests.shop.models import Effect
from tests.support.attempts import committed, on_own_connection

pytestmark = committed


def register_two_steps(processors, *, in_completion=lambda: None):
    @processors.register("second", entry=False)
    def second(job):
        return "done"

    @processors.register("first")
    def first(job):
        with job.complete():
            Effect.objects.create(job_id=job.id, label="once")
            in_completion()
            return job.continue_with(second)

    return first


LOGGED = "An error after the commit does not change that"


def test_failing_on_commit_hook_neither_undoes_nor_repeats_the_job(processors, work, caplog):
    def fail():
        raise ValueError("a hook of the project")

    chain = register_two_steps(processors, in_completion=lambda: transaction.on_commit(fail)).enqueue()
    work()
    assert (chain.refresh().status, chain.output) == ("completed", "done")
    assert [job.attempt for job in chain.jobs] == [1, 1]
    assert Effect.objects.count() == 1
    assert LOGGED in caplog.text


def test_lost_reply_to_the_commit_neither_undoes_nor_repeats_the_job(processors, work, monkeypatch, caplog):
    commit = AttemptTransaction.commit
    replies = [OperationalError("the reply was lost")]

    def lose_the_reply(transaction):
        commit(transaction)
        if replies:
            raise replies.pop()

    monkeypatch.setattr(AttemptTransaction, "commit", lose_the_reply)
    chain = register_two_steps(processors).enqueue()
    work()
    assert (chain.refresh().status, chain.output) == ("completed", "done")
    assert [job.attempt for job in chain.jobs] == [1, 1]
    assert Effect.objects.count() == 1
    assert LOGGED in caplog.text


def test_completion_by_hand_is_not_mistaken_for_that_of_an_attempt_whose_commit_failed(
    processors, work, monkeypatch, caplog
):
    def fail(transaction):
        error = OperationalError("cut before the commit")
        transaction.roll_back(error)
        on_own_connection(chains.complete, chain.id, None)
        raise error

    monkeypatch.setattr(AttemptTransaction, "commit", fail)
    chain = register_two_steps(processors).enqueue()
    work()
    assert (chain.refresh().status, len(chain.jobs)) == ("completed", 1)
    assert Effect.objects.count() == 0
    assert LOGGED not in caplog.text


def test_job_whose_commit_failed_is_retried(processors, work, monkeypatch):
    commit = AttemptTransaction.commit
    errors = [OperationalError("cut before the commit")]

    def fail_first(transaction):
        if errors:
            error = errors.pop()
            transaction.roll_back(error)
            raise error
        commit(transaction)

    monkeypatch.setattr(AttemptTransaction, "commit", fail_first)
    chain = register_two_steps(processors).enqueue()
    work()
    first = chain.refresh().jobs[0]
    assert (first.status, first.attempt) == ("pending", 1)
    assert "cut before the commit" in first.last_error
    assert Effect.objects.count() == 0
