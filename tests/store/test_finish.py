"""Completing attempts: output or continuation, all of it or nothing."""

import pytest
from django.db import transaction

from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.store import ClaimedJob, Store
from tests.store.connections import committing
from tests.store.jobs import (
    WORKER,
    claim,
    create,
    database_now,
    failed_try,
    finished,
    next_job,
    row,
    running,
    running_job,
    stored,
    tables,
)

pytestmark = pytest.mark.django_db

counts = pytest.mark.parametrize("count", [1, 2, 50])


@counts
def test_finish_completes_and_keeps_output_worker_and_time_and_changes_nothing_else(store: Store, count: int) -> None:
    jobs = running(store, count)
    before = {job.id: row(job) for job in jobs}
    start = database_now()
    assert store.finish([finished(job, f'{{"n": {n}}}') for n, job in enumerate(jobs)]) == {job.key for job in jobs}
    for number, job in enumerate(jobs):
        after = row(job)
        changed = {name: value for name, value in after.items() if value != before[job.id][name]}
        assert start <= changed.pop("finished_at") <= database_now()
        assert changed == {
            "status": "completed",
            "output": {"n": number},
            "completed_by": WORKER,
            "leased_by": None,
            "leased_until": None,
        }


def test_no_output_is_none(store: Store) -> None:
    job = running_job(store)
    store.finish([finished(job, None)])
    assert stored(job).output is None


def test_success_forgets_the_last_error_and_keeps_the_history(store: Store) -> None:
    job = running_job(store)
    store.reschedule([failed_try(job)])
    store.finish([finished(claim(store)[0])])
    assert stored(job).last_error is None
    assert FailedAttempt.objects.count() == 1


def test_success_costs_no_history_row(store: Store) -> None:
    store.finish([finished(running_job(store))])
    assert FailedAttempt.objects.count() == 0


def test_an_attempt_whose_lease_ran_out_but_was_not_taken_may_finish(store: Store) -> None:
    job = running_job(store)
    Job.objects.update(leased_until=database_now().replace(year=2020))
    assert store.finish([finished(job)]) == {job.key}


@counts
def test_a_continuation_is_the_next_step_of_its_chain(store: Store, count: int) -> None:
    jobs = running(store, count)
    store.finish([finished(job, None, next_job(job, input=f'"after {job.id}"')) for job in jobs])
    for job in jobs:
        first, second = Job.objects.filter(chain_id=job.id).order_by("chain_index")
        assert (first.status, first.output, second.status) == ("completed", None, "pending")
        assert (second.chain_index, second.chain_type_name) == (1, job.type_name)
        assert second.input == f"after {job.id}"
        assert second.id != second.chain_id


def test_a_continuation_has_its_own_queue_priority_and_date(store: Store) -> None:
    job = running_job(store)
    continuation = next_job(job, queue="mail", priority=8, max_attempts=2, delay_seconds=3_600)
    store.finish([finished(job, None, continuation)])
    saved = stored(continuation.id)
    assert (saved.queue, saved.priority, saved.max_attempts) == ("mail", 8, 2)
    assert 3_599 < (saved.run_at - saved.created_at).total_seconds() < 3_601


def test_a_chain_goes_on_step_by_step(store: Store) -> None:
    [job] = running(store)
    for index in range(1, 6):
        store.finish([finished(job, None, next_job(job))])
        [job] = claim(store)
        assert (job.chain_index, job.attempt) == (index, 1)
    store.finish([finished(job)])
    steps = Job.objects.filter(chain_id=job.chain_id).order_by("chain_index")
    assert [(step.chain_index, step.status) for step in steps] == [(index, "completed") for index in range(6)]


def test_outputs_and_continuations_may_share_a_batch(store: Store) -> None:
    ending, going_on = running(store, 2)
    store.finish([finished(ending, "1"), finished(going_on, None, next_job(going_on))])
    assert stored(ending).output == 1
    assert not Job.objects.filter(chain_id=ending.id, chain_index=1).exists()
    assert Job.objects.filter(chain_id=going_on.id, chain_index=1).exists()


class TestAllOrNothing:
    """A continuation that cannot be created."""

    pytestmark = committing

    @pytest.fixture
    def jobs(self, store: Store) -> list[ClaimedJob]:
        return running(store, 3)

    def test_a_step_that_exists_undoes_its_completion(self, store: Store, jobs: list[ClaimedJob]) -> None:
        job = jobs[0]
        store.create([next_job(job)])
        before = tables()
        with pytest.raises(DuplicateJobId):
            store.finish([finished(job, None, next_job(job))])
        assert tables() == before

    def test_it_undoes_the_whole_batch(self, store: Store, jobs: list[ClaimedJob]) -> None:
        [existing] = create(store)
        before = tables()
        with pytest.raises(DuplicateJobId):
            store.finish(
                [
                    finished(jobs[0]),
                    finished(jobs[1], None, next_job(jobs[1])),
                    finished(jobs[2], None, next_job(jobs[2], id=existing)),
                ]
            )
        assert tables() == before

    def test_it_undoes_the_callers_transaction_too(self, store: Store, jobs: list[ClaimedJob]) -> None:
        store.create([next_job(jobs[0])])
        before = tables()
        with pytest.raises(DuplicateJobId):  # noqa: SIM117 - the error leaves the transaction
            with transaction.atomic():
                store.finish([finished(jobs[1])])
                store.finish([finished(jobs[0], None, next_job(jobs[0]))])
        assert tables() == before

    def test_the_rest_can_be_finished_afterwards(self, store: Store, jobs: list[ClaimedJob]) -> None:
        store.create([next_job(jobs[0])])
        with pytest.raises(DuplicateJobId):
            store.finish([finished(job, None, next_job(job)) for job in jobs])
        assert store.finish([finished(job, None, next_job(job)) for job in jobs[1:]]) == {job.key for job in jobs[1:]}

    def test_a_rolled_back_finish_leaves_the_attempt_running(self, store: Store, jobs: list[ClaimedJob]) -> None:
        before = tables()
        with transaction.atomic():
            store.finish([finished(job, None, next_job(job)) for job in jobs])
            transaction.set_rollback(True)
        assert tables() == before
        assert store.finish([finished(job) for job in jobs]) == {job.key for job in jobs}
