"""A stale attempt changes no row."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.statuses import TRANSITIONS
from django_jobchains.store import ClaimedJob, Store
from tests.support.jobs import (
    failed_try,
    finished,
    lease,
    lost,
    next_job,
    running,
    running_job,
    stored,
    tables,
    taken_over,
)

pytestmark = pytest.mark.django_db

Writer = Callable[[Store, Sequence[ClaimedJob]], set[Any]]

#: Each fenced move, as a function that returns the attempts it wrote.
WRITERS: dict[str, Writer] = {
    "renew": lambda store, jobs: {job.key for job in jobs if job.key not in store.leases.renew([lease(job)]).lost},
    "finish": lambda store, jobs: store.attempts.finish([finished(job) for job in jobs]),
    "finish_and_continue": lambda store, jobs: store.attempts.finish(
        [finished(job, None, next_job(job)) for job in jobs]
    ),
    "reschedule": lambda store, jobs: set(store.attempts.reschedule([failed_try(job) for job in jobs])),
    "reschedule_as_asked": lambda store, jobs: set(
        store.attempts.reschedule([failed_try(job, is_failure=False) for job in jobs])
    ),
    "fail": lambda store, jobs: set(store.attempts.fail([failed_try(job) for job in jobs])),
    "hand_back": lambda store, jobs: store.attempts.hand_back([job.key for job in jobs]),
}
BATCHES = {name: writer for name, writer in WRITERS.items() if name != "renew"}

writers = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
batches = pytest.mark.parametrize("write", BATCHES.values(), ids=BATCHES)


def test_every_fenced_move_is_tested() -> None:
    assert {row.move for row in TRANSITIONS if row.fenced} == WRITERS.keys() - {
        "finish_and_continue",
        "reschedule_as_asked",
    }


@writers
@pytest.mark.parametrize("off", [-1, 1, 1_000_000])
def test_wrong_lease_number_changes_nothing(store: Store, write: Writer, off: int) -> None:
    job = running_job(store)
    before = tables()
    number = job.lease_number + off
    assert write(store, [job._replace(lease_number=number, key=(job.id, number))]) == set()
    assert tables() == before


@writers
def test_attempt_whose_job_was_deleted_changes_nothing(store: Store, write: Writer) -> None:
    job, other = running(store, 2)
    Job.objects.filter(pk=job.id).delete()
    before = tables()
    assert write(store, [job]) == set()
    assert tables() == before
    assert stored(other).status == "running"


@batches
@pytest.mark.parametrize("turned", [False, True], ids=["stale_first", "fresh_first"])
def test_only_the_fresh_one_of_two_attempts_of_one_job_is_written(store: Store, write: Writer, turned: bool) -> None:
    stale = running_job(store)
    fresh = taken_over(store, stale)
    batch = [stale, fresh]
    assert write(store, batch[::-1] if turned else batch) == {fresh.key}
    assert stored(fresh).leased_by is None


def test_values_of_the_fresh_attempt_are_written(store: Store) -> None:
    stale = running_job(store)
    fresh = taken_over(store, stale)
    assert store.attempts.finish([finished(stale, '"stale"'), finished(fresh, '"fresh"')]) == {fresh.key}
    assert stored(fresh).output == "fresh"


@pytest.mark.parametrize("move", ["reschedule", "fail"])
def test_stale_failure_is_not_recorded(store: Store, move: str) -> None:
    stale = running_job(store)
    fresh = taken_over(store, stale)
    getattr(store.attempts, move)([failed_try(stale, error="stale"), failed_try(fresh, error="fresh")])
    assert [(row.lease_number, row.error) for row in FailedAttempt.objects.all()] == [(fresh.lease_number, "fresh")]


@batches
def test_nothing_is_written_for_an_empty_batch(store: Store, write: Writer) -> None:
    assert write(store, []) == set()


def test_nothing_is_renewed_for_an_empty_batch(store: Store) -> None:
    assert store.leases.renew([]) == store.leases.check([]) == lost({})
