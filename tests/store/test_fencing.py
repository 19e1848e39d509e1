"""A stale attempt's write changes no row, whatever it wants to write."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.statuses import TRANSITIONS
from django_jobchains.store import ClaimedJob, Store
from tests.store.jobs import (
    failed_try,
    finished,
    lease,
    lost,
    next_job,
    row,
    running,
    running_job,
    stored,
    tables,
    taken_over,
)

pytestmark = pytest.mark.django_db

Writer = Callable[[Store, Sequence[ClaimedJob]], set[Any]]

#: Each fenced move, as the set of the attempts it wrote.
WRITERS: dict[str, Writer] = {
    "renew": lambda store, jobs: {job.key for job in jobs if job.key not in store.renew([lease(job)]).lost},
    "finish": lambda store, jobs: store.finish([finished(job) for job in jobs]),
    "finish_and_continue": lambda store, jobs: store.finish([finished(job, None, next_job(job)) for job in jobs]),
    "reschedule": lambda store, jobs: set(store.reschedule([failed_try(job) for job in jobs])),
    "fail": lambda store, jobs: set(store.fail([failed_try(job) for job in jobs])),
    "hand_back": lambda store, jobs: store.hand_back([lease(job) for job in jobs]),
}
BATCHES = {name: writer for name, writer in WRITERS.items() if name != "renew"}

writers = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
batches = pytest.mark.parametrize("write", BATCHES.values(), ids=BATCHES)


def test_every_fenced_move_of_the_table_is_tested_here() -> None:
    assert {row.move for row in TRANSITIONS if row.fenced} == WRITERS.keys() - {"finish_and_continue"}


@writers
@pytest.mark.parametrize("off", [-1, 1, 1_000_000])
def test_a_wrong_lease_number_changes_nothing(store: Store, write: Writer, off: int) -> None:
    job = running_job(store)
    before = tables()
    assert write(store, [job._replace(lease_number=job.lease_number + off)]) == set()
    assert tables() == before


@writers
def test_an_attempt_whose_job_was_claimed_again_changes_nothing(store: Store, write: Writer) -> None:
    stale = running_job(store)
    taken_over(store, stale)
    before = tables()
    assert write(store, [stale]) == set()
    assert tables() == before


@writers
def test_an_attempt_whose_job_was_deleted_changes_nothing(store: Store, write: Writer) -> None:
    job, neighbour = running(store, 2)
    Job.objects.filter(pk=job.id).delete()
    before = tables()
    assert write(store, [job]) == set()
    assert tables() == before
    assert stored(neighbour).status == "running"


@batches
def test_an_attempt_ends_once(store: Store, write: Writer) -> None:
    job = running_job(store)
    assert write(store, [job]) == {job.key}
    before = tables()
    for again in BATCHES.values():
        assert again(store, [job]) == set()
    assert tables() == before


def test_the_continuation_of_a_stale_finish_is_not_created(store: Store) -> None:
    stale = running_job(store)
    taken_over(store, stale)
    assert store.finish([finished(stale, None, next_job(stale))]) == set()
    assert Job.objects.count() == 1


@batches
def test_a_batch_writes_its_fresh_attempts_only(store: Store, write: Writer) -> None:
    jobs = running(store, 4)
    stale, fresh = jobs[:2], jobs[2:]
    current = [taken_over(store, job) for job in stale]
    before = [row(job) for job in current]
    assert write(store, [stale[0], fresh[0], stale[1], fresh[1]]) == {job.key for job in fresh}
    assert [row(job) for job in current] == before
    assert all(stored(job).leased_by is None for job in fresh)


@batches
@pytest.mark.parametrize("turned", [False, True], ids=["stale_first", "fresh_first"])
def test_of_two_attempts_of_one_job_in_a_batch_only_the_fresh_one_is_written(
    store: Store, write: Writer, turned: bool
) -> None:
    stale = running_job(store)
    fresh = taken_over(store, stale)
    batch = [stale, fresh]
    assert write(store, batch[::-1] if turned else batch) == {fresh.key}
    assert stored(fresh).leased_by is None


def test_the_values_written_are_those_of_the_fresh_attempt(store: Store) -> None:
    stale = running_job(store)
    fresh = taken_over(store, stale)
    assert store.finish([finished(stale, '"stale"'), finished(fresh, '"fresh"')]) == {fresh.key}
    assert stored(fresh).output == "fresh"


def test_of_two_continuations_for_one_step_only_the_fresh_one_is_created(store: Store) -> None:
    stale = running_job(store)
    fresh = taken_over(store, stale)
    texts = {stale: '"stale"', fresh: '"fresh"'}
    store.finish([finished(job, None, next_job(job, input=text)) for job, text in texts.items()])
    assert [job.input for job in Job.objects.filter(chain_index=1)] == ["fresh"]


@pytest.mark.parametrize("move", ["reschedule", "fail"])
def test_a_stale_failure_leaves_no_history(store: Store, move: str) -> None:
    stale = running_job(store)
    fresh = taken_over(store, stale)
    getattr(store, move)([failed_try(stale, error="stale"), failed_try(fresh, error="fresh")])
    assert [(row.lease_number, row.error) for row in FailedAttempt.objects.all()] == [(fresh.lease_number, "fresh")]


@batches
def test_nothing_is_written_for_an_empty_batch(store: Store, write: Writer) -> None:
    assert write(store, []) == set()


def test_nothing_is_renewed_for_an_empty_batch(store: Store) -> None:
    assert store.renew([]) == store.check([]) == lost({})
