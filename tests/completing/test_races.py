"""Two who end one job, stepped on two connections in both orders: one of them does, the other changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainNotFound, JobAlreadyCompleted, JobNotCompletable, JobTypeMismatch
from django_jobchains.policies import Backoff
from django_jobchains.store import ClaimedJob, Store, get_store
from django_jobchains.store.leases import lost_reason
from tests.completing.work import approval, pending, rows, running, typed
from tests.store.connections import Actor, committing, holding, waiting
from tests.store.jobs import claim, expire, failed_try, finished, lease, next_job

pytestmark = [committing, pytest.mark.slow]

Call = Callable[[Store], Any]


def overdue_job() -> ClaimedJob:
    """An attempt whose lease ran out, but whose worker lives."""
    approval.enqueue()
    [job] = claim(get_store(), types=[approval.name])
    expire(job)
    return job


# People


def finish_as(name: str, chain_id: Any, job_type: Any = None) -> Call:
    def call(store: Store) -> str:
        with chains.complete(chain_id, job_type) as current:
            current.finish(name)
        return name

    return call


def continue_as(name: str, chain_id: Any, job_type: Any = None) -> Call:
    def call(store: Store) -> str:
        with chains.complete(chain_id, job_type) as current:
            current.continue_with(typed, 1)
        return name

    return call


def and_rows(call: Call) -> Call:
    """The call, and what its transaction sees after it."""
    return lambda store: (call(store), rows())


def error_of(actor: Actor) -> Exception | None:
    try:
        actor.result()
    except Exception as error:
        return error
    return None


by_hand_twice = pytest.mark.parametrize(
    ("first", "second"), [(first, second) for first in (finish_as, continue_as) for second in (finish_as, continue_as)]
)


@by_hand_twice
def test_of_two_people_one_completes_the_job_and_the_other_is_told(first: Any, second: Any) -> None:
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


@by_hand_twice
def test_after_a_rollback_the_second_completes_it(first: Any, second: Any) -> None:
    chain = pending()
    undone = holding(first("first", chain.id))
    other = waiting(second("second", chain.id))
    undone.go_on(roll_back=True)
    undone.result()
    assert other.result() == "second"
    assert chain.refresh().status == ("completed" if second is finish_as else "pending")
    assert undone.conflicts == other.conflicts == []


def test_who_names_no_type_completes_the_step_that_came_meanwhile() -> None:
    chain = approval.enqueue()
    first = holding(continue_as("first", chain.id))
    second = waiting(lambda store: finish_integer(chain))
    first.go_on()
    first.result()
    second.result()
    assert [job.status for job in chain.jobs] == ["completed", "completed"]
    assert chain.refresh().output == 2


def finish_integer(chain: Chain) -> None:
    with chains.complete(chain.id) as current:
        current.finish(2)


# A worker and a person


def complete(store: Store, job: ClaimedJob) -> Any:
    """What an attempt does whose handler wrote in ``complete()``."""
    with store.transaction():
        return not lost_reason(store.lock(job.id), job.lease_number) and store.finish([finished(job)])


#: Everything that ends an attempt; each returns something when it did.
ENDS: dict[str, Callable[[Store, ClaimedJob], Any]] = {
    "finish": lambda store, job: store.finish([finished(job)]),
    "complete": complete,
    "continue": lambda store, job: store.finish([finished(job, None, next_job(job))]),
    "reschedule": lambda store, job: store.reschedule([failed_try(job, delay_seconds=60)]),
    "fail": lambda store, job: store.fail([failed_try(job)]),
    "hand_back": lambda store, job: store.hand_back([lease(job)]),
    "reap": lambda store, job: store.reap(10, Backoff(), 10),
}
#: What a person is told who comes after it; the others leave a job that he completes.
ERRORS = {
    "finish": JobAlreadyCompleted,
    "complete": JobAlreadyCompleted,
    "continue": JobTypeMismatch,
    "fail": JobNotCompletable,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_worker_that_comes_after_a_person_changes_nothing(end: str) -> None:
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
def test_a_person_that_comes_after_a_worker_is_told_or_completes_what_it_left(end: str) -> None:
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
def test_after_a_persons_rollback_the_worker_ends_its_attempt(end: str) -> None:
    job = overdue_job()
    person = holding(finish_as("person", job.chain_id))
    worker = waiting(lambda store: ENDS[end](store, job))
    person.go_on(roll_back=True)
    person.result()
    if not worker.result():  # it left the row that was locked alone, and comes again
        ENDS[end](get_store(), job)
    assert chains.get(job.chain_id).output != "person"


def test_a_claim_after_a_person_finds_nothing() -> None:
    chain = approval.enqueue()
    person = holding(finish_as("person", chain.id))
    claiming = waiting(lambda store: claim(store, types=[approval.name]))
    person.go_on()
    person.result()
    assert claiming.result() == []
    assert chain.refresh().current_job.lease_number == 0


def test_a_person_after_a_claim_completes_the_running_job() -> None:
    chain = approval.enqueue()
    claiming = holding(lambda store: claim(store, types=[approval.name]))
    person = waiting(finish_as("person", chain.id))
    claiming.go_on()
    [job] = claiming.result()
    person.result()
    assert (chain.refresh().status, chain.output) == ("completed", "person")
    assert not get_store().finish([finished(job)])


@pytest.mark.parametrize("is_first", [True, False])
def test_a_cancellation_beside_it_leaves_one_outcome(is_first: bool) -> None:
    chain = approval.enqueue()
    calls: list[Call] = [finish_as("person", chain.id), lambda store: chains.cancel(chain.id)]
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
def test_a_deletion_beside_it_leaves_nothing(is_first: bool) -> None:
    chain = approval.enqueue()
    calls: list[Call] = [continue_as("person", chain.id), lambda store: chains.delete(chain.id)]
    first = holding(calls[not is_first])
    second = waiting(calls[is_first])
    first.go_on()
    first.result()
    if is_first:
        assert second.result() == {chain.id}
    else:
        assert type(error_of(second)) is ChainNotFound
    assert not Chain.objects.exists()
