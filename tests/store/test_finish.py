"""Completed attempts, with an output or a continuation."""

import pytest
from django.db import transaction

from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.store import ClaimedJob, Store
from tests.support.connections import committing
from tests.support.jobs import (
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

counts = pytest.mark.parametrize("count", [1, 3])


@counts
def test_finish_writes_output_worker_and_time_and_changes_nothing_else(store: Store, count: int) -> None:
    jobs = running(store, count)
    before = {job.id: row(job) for job in jobs}
    start = database_now()
    assert store.attempts.finish([finished(job, f'{{"n": {n}}}') for n, job in enumerate(jobs)]) == {
        job.key for job in jobs
    }
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


def test_job_without_output_has_the_output_none(store: Store) -> None:
    job = running_job(store)
    store.attempts.finish([finished(job, None)])
    assert stored(job).output is None


def test_success_clears_the_last_error_and_keeps_the_history(store: Store) -> None:
    job = running_job(store)
    store.attempts.reschedule([failed_try(job)])
    store.attempts.finish([finished(claim(store)[0])])
    assert stored(job).last_error is None
    assert FailedAttempt.objects.count() == 1


def test_attempt_with_an_expired_lease_may_finish_if_its_job_was_not_reaped(store: Store) -> None:
    job = running_job(store)
    Job.objects.update(leased_until=database_now().replace(year=2020))
    assert store.attempts.finish([finished(job)]) == {job.key}


@counts
def test_continuation_is_the_next_step_of_its_chain(store: Store, count: int) -> None:
    jobs = running(store, count)
    store.attempts.finish([finished(job, None, next_job(job, input=f'"after {job.id}"')) for job in jobs])
    for job in jobs:
        first, second = Job.objects.filter(chain_id=job.id).order_by("chain_index")
        assert (first.status, first.output, second.status) == ("completed", None, "pending")
        assert (second.chain_index, second.chain_type_name) == (1, job.type_name)
        assert second.input == f"after {job.id}"
        assert second.id != second.chain_id


def test_continuation_has_its_own_queue_priority_and_date(store: Store) -> None:
    job = running_job(store)
    continuation = next_job(job, queue="mail", priority=8, max_attempts=2, delay_seconds=3_600)
    store.attempts.finish([finished(job, None, continuation)])
    saved = stored(continuation.id)
    assert (saved.queue, saved.priority, saved.max_attempts) == ("mail", 8, 2)
    assert 3_599 < (saved.run_at - saved.created_at).total_seconds() < 3_601


def test_outputs_and_continuations_may_share_a_batch(store: Store) -> None:
    ending, continuing = running(store, 2)
    store.attempts.finish([finished(ending, "1"), finished(continuing, None, next_job(continuing))])
    assert stored(ending).output == 1
    assert not Job.objects.filter(chain_id=ending.id, chain_index=1).exists()
    assert Job.objects.filter(chain_id=continuing.id, chain_index=1).exists()


class TestAllOrNothing:
    """A continuation that cannot be created rolls back the completion."""

    pytestmark = committing

    @pytest.fixture
    def jobs(self, store: Store) -> list[ClaimedJob]:
        return running(store, 3)

    def test_whole_batch_is_rolled_back(self, store: Store, jobs: list[ClaimedJob]) -> None:
        [existing] = create(store)
        before = tables()
        with pytest.raises(DuplicateJobId):
            store.attempts.finish(
                [
                    finished(jobs[0]),
                    finished(jobs[1], None, next_job(jobs[1])),
                    finished(jobs[2], None, next_job(jobs[2], id=existing)),
                ]
            )
        assert tables() == before

    def test_callers_transaction_is_rolled_back(self, store: Store, jobs: list[ClaimedJob]) -> None:
        store.jobs.create([next_job(jobs[0])])
        before = tables()
        with pytest.raises(DuplicateJobId):  # noqa: SIM117 - the error leaves the transaction
            with transaction.atomic():
                store.attempts.finish([finished(jobs[1])])
                store.attempts.finish([finished(jobs[0], None, next_job(jobs[0]))])
        assert tables() == before

    def test_rest_can_be_finished_afterwards(self, store: Store, jobs: list[ClaimedJob]) -> None:
        store.jobs.create([next_job(jobs[0])])
        with pytest.raises(DuplicateJobId):
            store.attempts.finish([finished(job, None, next_job(job)) for job in jobs])
        assert store.attempts.finish([finished(job, None, next_job(job)) for job in jobs[1:]]) == {
            job.key for job in jobs[1:]
        }
