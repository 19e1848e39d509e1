"""What people do to jobs: guarded by their status, all or nothing."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from django_jobchains.exceptions import (
    ChainNotFound,
    ChainReferenced,
    JobAlreadyCompleted,
    JobNotCompletable,
    JobNotFound,
    JobNotRunnable,
)
from django_jobchains.ids import new_id
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.store import ClaimedJob, Effects, Store
from django_jobchains.testing.contracts.jobs import (
    MAIL,
    SHIP,
    claim,
    create,
    failed_try,
    finished,
    lease,
    next_job,
    running,
    running_job,
    statuses,
    stored,
    tables,
)
from django_jobchains.testing.contracts.storing import StoreTests, committing

STATES = ("blocked", "pending", "running", "completed", "failed", "cancelled")
FAR = datetime(2051, 3, 4, 5, 6, 7, 123456, tzinfo=UTC)


def in_state(store: Store, status: str) -> UUID:
    """A chain of one job with this status."""
    if status == "blocked":
        return create(store, blockers=tuple(create(store, 1, MAIL, delay_seconds=3600)))[0]
    if status == "pending":
        return create(store, delay_seconds=60)[0]
    job = running_job(store)
    if status == "completed":
        store.finish([finished(job)])
    if status in ("failed", "cancelled"):
        store.fail([failed_try(job)]) if status == "failed" else store.hand_back([lease(job)])
    if status == "cancelled":
        store.cancel([job.chain_id], Effects())
    assert statuses(store, job) == [status]
    return job.id


def complete(store: Store, chain_id: UUID, effects: Effects | None = None, **changes: Any) -> None:
    with store.transaction():
        tail = store.lock_tails([chain_id])[chain_id]
        store.complete(tail, changes.get("output", '"by hand"'), changes.get("continuation"), effects or Effects())


class Intervening(StoreTests):
    @pytest.mark.parametrize("status", ["blocked", "pending", "running"])
    def test_a_job_that_has_not_ended_is_completed(self, store: Store, status: str) -> None:
        chain_id, effects = in_state(store, status), Effects()
        complete(store, chain_id, effects)
        saved = stored(store, chain_id)
        assert (saved.status, saved.output, saved.completed_by) == ("completed", "by hand", None)
        assert (saved.leased_by, saved.leased_until) == (None, None)
        assert effects.finished_chains == {chain_id}
        assert effects.stopped_jobs == ({chain_id} if status == "running" else set())

    @pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
    def test_a_job_that_has_ended_is_not_completed(self, store: Store, status: str) -> None:
        chain_id = in_state(store, status)
        before = tables(store)
        with pytest.raises(JobAlreadyCompleted if status == "completed" else JobNotCompletable):
            complete(store, chain_id)
        assert tables(store) == before

    def test_a_chain_that_is_completed_by_hand_goes_on(self, store: Store) -> None:
        job, effects = running_job(store), Effects()
        step = next_job(job)
        complete(store, job.chain_id, effects, output=None, continuation=step)
        assert statuses(store, job, step.id) == ["completed", "pending"]
        assert effects.finished_chains == set()
        assert store.lock_tails([job.chain_id])[job.chain_id].job_id == step.id
        assert store.finish([finished(job)]) == set()

    def test_the_last_job_of_a_chain_is_told_and_locked(self, store: Store) -> None:
        job = running_job(store, context='{"tenant": 7}', deduplication_key="k", priority=3)
        with store.transaction():
            tails = store.lock_tails([job.chain_id, new_id()])
        assert tails == store.tails([job.chain_id])
        tail = tails[job.chain_id]
        assert (tail.job_id, tail.chain_index, tail.type_name, tail.status) == (job.id, 0, SHIP, "running")
        assert (tail.lease_number, tail.priority, tail.deduplication_key) == (job.lease_number, 3, "k")

    def test_chains_that_did_not_start_are_cancelled_and_others_asked_to_stop(self, store: Store) -> None:
        ids, effects = {status: in_state(store, status) for status in STATES}, Effects()
        changed = {ids[status] for status in ("blocked", "pending", "running")}
        assert store.cancel(ids.values(), effects) == changed
        assert statuses(store, *ids.values()) == [
            "cancelled",
            "cancelled",
            "running",
            "completed",
            "failed",
            "cancelled",
        ]
        assert stored(store, ids["running"]).cancel_requested_at is not None
        assert effects.stopped_jobs == {ids["running"]}
        assert effects.finished_chains == {ids["blocked"], ids["pending"]}

    def test_jobs_that_failed_or_were_cancelled_are_retried(self, store: Store) -> None:
        ids, effects = {status: in_state(store, status) for status in STATES}, Effects()
        assert store.retry(ids.values(), effects) == {ids["failed"], ids["cancelled"]}
        for status in STATES:
            expected = "pending" if status in ("failed", "cancelled") else status
            assert statuses(store, ids[status]) == [expected]
        saved = stored(store, ids["failed"])
        assert (saved.finished_at, saved.cancel_requested_at, saved.crashes) == (None, None, 0)
        assert effects.due_types == {SHIP}
        assert {job.id for job in claim(store)} == {ids["failed"], ids["cancelled"]}

    def test_a_job_that_still_waits_is_retried_as_blocked(self, store: Store) -> None:
        chain_id = in_state(store, "blocked")
        store.cancel([chain_id], Effects())
        assert store.retry([chain_id], Effects()) == {chain_id}
        assert statuses(store, chain_id) == ["blocked"]

    def test_pending_jobs_are_moved_to_a_time_or_to_now(self, store: Store) -> None:
        ids, effects = create(store, 2, delay_seconds=60), Effects()
        store.move(ids, FAR, 0, effects)
        assert [stored(store, job_id).run_at for job_id in ids] == [FAR, FAR]
        assert effects.due_types == {SHIP}
        store.move(ids, None, 0, effects)
        assert [job.id for job in claim(store)] == ids

    def test_if_one_is_not_pending_none_is_moved(self, store: Store) -> None:
        ids = [in_state(store, status) for status in ("pending", "running")]
        before = tables(store)
        with pytest.raises(JobNotRunnable), transaction.atomic(using=store.using):
            store.move(ids, FAR, 0, Effects())
        assert tables(store) == before

    def test_if_one_is_unknown_nothing_is_changed(self, store: Store) -> None:
        known, effects = in_state(store, "failed"), Effects()
        ids = [known, new_id()]
        before = tables(store)
        for call, error in (
            (lambda: store.cancel(ids, effects), ChainNotFound),
            (lambda: store.retry(ids, effects), JobNotFound),
            (lambda: store.move(ids, FAR, 0, effects), JobNotFound),
            (lambda: store.delete(ids, cascade=False, effects=effects), ChainNotFound),
        ):
            with pytest.raises(error), transaction.atomic(using=store.using):
                call()
        assert tables(store) == before
        assert effects == Effects()

    def test_a_chain_is_deleted_with_everything_that_is_its_own(self, store: Store) -> None:
        (other,), effects = create(store, delay_seconds=60), Effects()
        job = running_job(store)
        store.reschedule([failed_try(job, delay_seconds=0)])
        store.ahead_seconds = 1
        (job,) = claim(store)
        store.finish([finished(job, None, next_job(job, blockers=(other,)))])
        assert store.delete([job.chain_id], cascade=False, effects=effects) == {job.chain_id}
        assert [left.pk for left in Job.objects.using(store.using).all()] == [other]
        assert not FailedAttempt.objects.using(store.using).exists()
        assert not JobBlocker.objects.using(store.using).exists()
        assert effects.finished_chains == {job.chain_id}

    def test_a_chain_that_somebody_needs_is_not_deleted(self, store: Store) -> None:
        blocker = running_job(store)
        (waits,) = create(store, 1, MAIL, blockers=(blocker.chain_id,))
        with pytest.raises(ChainReferenced), transaction.atomic(using=store.using):
            store.delete([blocker.chain_id], cascade=False, effects=Effects())
        assert store.delete([waits], cascade=True, effects=Effects()) == {waits, blocker.chain_id}
        assert not Job.objects.using(store.using).exists()

    @committing
    @pytest.mark.parametrize("by_hand_first", [True, False])
    def test_a_job_is_completed_by_hand_or_by_its_attempt(self, store: Store, by_hand_first: bool) -> None:
        job = running_job(store)

        def by_hand() -> bool:
            try:
                complete(store, job.chain_id)
            except JobAlreadyCompleted:
                return False
            return True

        calls = [by_hand, lambda: bool(store.finish([finished(job)]))]
        first, second = calls[:: 1 if by_hand_first else -1]
        winner, loser = self.holding(store, first), self.waiting(store, second)
        assert (winner.result(), loser.result()) == (True, False)
        assert stored(store, job).output == ("by hand" if by_hand_first else "done")

    @committing
    @pytest.mark.parametrize("cancelled_first", [True, False])
    def test_a_job_is_cancelled_before_its_claim_or_asked_to_stop(self, store: Store, cancelled_first: bool) -> None:
        (job_id,) = create(store)
        calls: list[Any] = [lambda: store.cancel([job_id], Effects()), lambda: claim(store)]
        first, second = calls[:: 1 if cancelled_first else -1]
        before, after = self.holding(store, first), self.waiting(store, second)
        claimed: list[ClaimedJob] = (before.result(), after.result())[1 if cancelled_first else 0]
        saved = stored(store, job_id)
        assert (saved.status, len(claimed)) == (("cancelled", 0) if cancelled_first else ("running", 1))
        assert saved.cancel_requested_at is not None

    @committing
    def test_jobs_in_opposite_order_do_not_wait_for_each_other_for_ever(self, store: Store) -> None:
        ids = [job.id for job in running(store, 5)]
        first = self.holding(store, lambda: store.cancel(ids, Effects()))
        second = self.waiting(store, lambda: store.cancel(ids[::-1], Effects()))
        assert first.result() == second.result() == set(ids)

    def test_time_is_the_databases(self, store: Store) -> None:
        moment = store.time_ago(0)
        assert abs(moment - store.time_ago(600) - timedelta(seconds=600)) < timedelta(seconds=60)
        store.ahead_seconds = 3600
        assert timedelta(minutes=59) < store.time_ago(0) - moment < timedelta(minutes=61)
