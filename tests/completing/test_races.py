"""Two calls that end one job, stepped on two connections in both orders: one succeeds, the other changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainNotFound, JobAlreadyCompleted, JobNotCompletable, JobTypeMismatch
from django_jobchains.declare.policies import Backoff
from django_jobchains.store import Store, get_store
from django_jobchains.store.leases import lost_reason
from tests.completing.work import approval, pending, rows, running, typed
from tests.support.connections import committing, holding, waiting
from tests.support.jobs import claim, expire, failed_try, finished, next_job

pytestmark = [committing, pytest.mark.slow]

Call = Callable[[Store], Any]


def overdue_job():
    """Return an attempt whose lease has expired although its worker still runs it."""
    approval.enqueue()
    [job] = claim(get_store(), types=[approval.name])
    expire(job)
    return job


# Two calls by hand


def finish_as(name, chain_id, job_type=None):
    def call(store):
        chains.complete(chain_id, name, job_type)
        return name

    return call


def continue_as(name, chain_id, job_type=None):
    def call(store):
        with chains.current_job(chain_id, job_type) as current:
            current.continue_with(typed, 1)
        return name

    return call


def and_rows(call):
    """Return a call that also returns the rows that its transaction sees afterwards."""
    return lambda store: (call(store), rows())


def error_of(actor):
    try:
        actor.result()
    except Exception as error:
        return error
    return None


two_calls_by_hand = pytest.mark.parametrize(
    ("first", "second"), [(first, second) for first in (finish_as, continue_as) for second in (finish_as, continue_as)]
)


@two_calls_by_hand
def test_of_two_calls_one_completes_the_job_and_the_other_fails(first, second):
    expected = JobAlreadyCompleted if first is finish_as else JobTypeMismatch
    for make in (pending, running):
        chain = make()
        winner = holding(and_rows(first("first", chain.id, approval)))
        loser = waiting(second("second", chain.id, approval))
        winner.go_on()
        _, after = winner.result()
        assert type(error_of(loser)) is expected
        assert rows() == after
        assert winner.conflicts == loser.conflicts == []


@two_calls_by_hand
def test_after_a_rollback_the_second_call_completes_the_job(first, second):
    chain = pending()
    undone = holding(first("first", chain.id))
    other = waiting(second("second", chain.id))
    undone.go_on(roll_back=True)
    undone.result()
    assert other.result() == "second"
    assert chain.refresh().status == ("completed" if second is finish_as else "pending")
    assert undone.conflicts == other.conflicts == []


def test_without_an_expected_type_the_next_step_is_completed():
    chain = approval.enqueue()
    first = holding(continue_as("first", chain.id))
    second = waiting(lambda store: finish_integer(chain))
    first.go_on()
    first.result()
    second.result()
    assert [job.status for job in chain.jobs] == ["completed", "completed"]
    assert chain.refresh().output == 2


def finish_integer(chain):
    chains.complete(chain.id, 2)


# A worker and a call by hand


def complete(store, job):
    """Complete the job like an attempt whose handler used ``job.complete()``."""
    with store.db.transaction():
        return not lost_reason(store.attempts.lock(job.id), job.lease_number) and store.attempts.finish([finished(job)])


#: Everything that ends an attempt. Each call returns a true value if it did.
ENDS = {
    "finish": lambda store, job: store.attempts.finish([finished(job)]),
    "complete": complete,
    "continue": lambda store, job: store.attempts.finish([finished(job, None, next_job(job))]),
    "reschedule": lambda store, job: store.attempts.reschedule([failed_try(job, delay_seconds=60)]),
    "fail": lambda store, job: store.attempts.fail([failed_try(job)]),
    "hand_back": lambda store, job: store.attempts.hand_back([job.key]),
    "reap": lambda store, job: store.leases.reap(10, Backoff(), 10),
}
#: The error of a call by hand after each of these. After the others, the job can be completed.
ERRORS = {
    "finish": JobAlreadyCompleted,
    "complete": JobAlreadyCompleted,
    "continue": JobTypeMismatch,
    "fail": JobNotCompletable,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_worker_after_a_call_by_hand_changes_nothing(end):
    for by_hand in (finish_as, continue_as):
        job = overdue_job()
        person = holding(and_rows(by_hand("person", job.chain_id, approval)))
        worker = waiting(lambda store: ENDS[end](store, job))  # noqa: B023
        person.go_on()
        _, after = person.result()
        assert not worker.result()
        assert rows() == after
        assert person.conflicts == worker.conflicts == []


@pytest.mark.parametrize("end", ENDS)
def test_a_call_by_hand_after_a_worker_fails_or_completes_the_job(end):
    for by_hand in (finish_as, continue_as):
        job = overdue_job()
        worker = holding(and_rows(lambda store: ENDS[end](store, job)))  # noqa: B023
        person = waiting(by_hand("person", job.chain_id, approval))
        worker.go_on()
        ended, after = worker.result()
        assert ended
        if end in ERRORS:
            assert type(error_of(person)) is ERRORS[end]
            assert rows() == after
        else:
            assert person.result() == "person"
            saved = chains.get(job.chain_id).jobs[0]
            assert (saved.status, saved.completed_by, saved.leased_by) == ("completed", None, None)
            assert saved.failed_attempts.count() == (0 if end == "hand_back" else 1)
        assert worker.conflicts == person.conflicts == []


@pytest.mark.parametrize("end", ENDS)
def test_after_a_rollback_of_the_call_the_worker_ends_its_attempt(end):
    job = overdue_job()
    person = holding(finish_as("person", job.chain_id))
    worker = waiting(lambda store: ENDS[end](store, job))
    person.go_on(roll_back=True)
    person.result()
    if not worker.result():  # it skipped the locked row, and writes it again later
        ENDS[end](get_store(), job)
    assert chains.get(job.chain_id).output != "person"


def test_a_claim_after_a_call_by_hand_finds_nothing():
    chain = approval.enqueue()
    person = holding(finish_as("person", chain.id))
    claiming = waiting(lambda store: claim(store, types=[approval.name]))
    person.go_on()
    person.result()
    assert claiming.result() == []
    assert chain.refresh().current_job.lease_number == 0


def test_a_call_by_hand_after_a_claim_completes_the_running_job():
    chain = approval.enqueue()
    claiming = holding(lambda store: claim(store, types=[approval.name]))
    person = waiting(finish_as("person", chain.id))
    claiming.go_on()
    [job] = claiming.result()
    person.result()
    assert (chain.refresh().status, chain.output) == ("completed", "person")
    assert not get_store().attempts.finish([finished(job)])


@pytest.mark.parametrize("is_first", [True, False])
def test_completion_and_cancellation_leave_one_outcome(is_first):
    chain = approval.enqueue()
    calls = [finish_as("person", chain.id), lambda store: chains.cancel(chain.id)]
    winner = holding(calls[not is_first])
    loser = waiting(calls[is_first])
    winner.go_on()
    winner.result()
    if is_first:
        assert loser.result() == set()
        assert chain.refresh().output == "person"
    else:
        assert type(error_of(loser)) is JobNotCompletable
        assert chain.refresh().status == "cancelled"


@pytest.mark.parametrize("is_first", [True, False])
def test_completion_and_deletion_leave_nothing(is_first):
    chain = approval.enqueue()
    calls = [continue_as("person", chain.id), lambda store: chains.delete(chain.id)]
    first = holding(calls[not is_first])
    second = waiting(calls[is_first])
    first.go_on()
    first.result()
    if is_first:
        assert second.result() == {chain.id}
    else:
        assert type(error_of(second)) is ChainNotFound
    assert not Chain.objects.exists()
