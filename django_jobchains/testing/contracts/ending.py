"""Holding and ending an attempt: every write asks for its lease number, and who comes too late changes nothing."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_jobchains.exceptions import DuplicateJobId, TransactionEnded
from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.policies import Backoff
from django_jobchains.store import AttemptKey, ClaimedJob, Effects, OpenTransaction, Store
from django_jobchains.testing.contracts.jobs import (
    AT_ONCE,
    LEASE_SECONDS,
    MAIL,
    MAX_CRASHES,
    SHIP,
    WORKER,
    claim,
    create,
    failed_try,
    finished,
    history,
    lease,
    let_leases_end,
    new_job,
    next_job,
    running,
    running_job,
    statuses,
    stored,
    tables,
    taken_over,
)
from django_jobchains.testing.contracts.storing import StoreTests, committing

End = Callable[[Store, Sequence[ClaimedJob]], Any]


def finish_locked(store: Store, jobs: Sequence[ClaimedJob]) -> set[AttemptKey]:
    """As an attempt does that wrote something of its own: lock, look whether the lease is held, write, finish."""
    with store.transaction():
        held = [job for job in jobs if store.lock(job.id) == ("running", job.lease_number)]
        return store.finish([finished(job) for job in held], is_locked=True)


#: Everything that ends attempts; each returns something about those that it ended.
ENDS: dict[str, End] = {
    "finish": lambda store, jobs: store.finish([finished(job) for job in jobs]),
    "finish_locked": finish_locked,
    "go_on": lambda store, jobs: store.finish([finished(job, None, next_job(job)) for job in jobs]),
    "reschedule": lambda store, jobs: store.reschedule([failed_try(job, delay_seconds=600) for job in jobs]),
    "fail": lambda store, jobs: store.fail([failed_try(job) for job in jobs]),
    "hand_back": lambda store, jobs: store.hand_back([lease(job) for job in jobs]),
}
#: The same, and the reaper, who knows attempts by their time alone.
ALL_ENDS: dict[str, End] = {**ENDS, "reap": lambda store, jobs: store.reap(10, Backoff(), MAX_CRASHES)}
ends = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
#: Two that meet: of each kind of write one before and one after another.
MEETINGS = (
    ("finish", "finish"),
    ("finish", "reap"),
    ("reap", "finish"),
    ("reap", "finish_locked"),
    ("finish_locked", "reap"),
    ("go_on", "go_on"),
    ("fail", "go_on"),
    ("go_on", "fail"),
    ("reschedule", "hand_back"),
    ("hand_back", "reschedule"),
)
meetings = pytest.mark.parametrize(("first", "second"), MEETINGS)


class Ending(StoreTests):
    def test_a_job_is_finished(self, store: Store) -> None:
        job, effects = running_job(store), Effects()
        assert store.finish([finished(job, {"parcels": 2})], effects) == {job.key}
        saved = stored(store, job)
        assert (saved.status, saved.output, saved.completed_by) == ("completed", {"parcels": 2}, WORKER)
        assert (saved.leased_by, saved.leased_until, saved.last_error) == (None, None, None)
        assert saved.finished_at is not None
        assert effects.finished_chains == {job.chain_id}

    def test_a_chain_goes_on(self, store: Store) -> None:
        job, effects = running_job(store), Effects()
        step = next_job(job, input='{"step": 2}')
        assert store.finish([finished(job, None, step)], effects) == {job.key}
        assert statuses(store, job, step.id) == ["completed", "pending"]
        assert stored(store, job).output is None
        assert effects.finished_chains == set()
        assert effects.due_counts == {MAIL: 1}
        chain = Chain.objects.using(store.using).get(pk=job.chain_id)
        assert (chain.status, chain.current_job_id) == ("pending", step.id)
        (claimed,) = claim(store)
        assert (claimed.id, claimed.chain_id, claimed.chain_index, claimed.chain_type_name) == (
            step.id,
            job.chain_id,
            1,
            SHIP,
        )

    def test_a_chain_goes_on_once(self, store: Store) -> None:
        """Two attempts of one step, both with a continuation: the fresh one's is kept."""
        stale = running_job(store)
        fresh = taken_over(store, stale)
        steps = {job: next_job(job) for job in (stale, fresh)}
        assert store.finish([finished(job, None, step) for job, step in steps.items()]) == {fresh.key}
        assert {job.id for job in Job.objects.using(store.using).all()} == {fresh.id, steps[fresh].id}
        assert store.finish([finished(stale, None, next_job(stale))]) == set()
        assert Job.objects.using(store.using).count() == 2

    def test_a_step_that_exists_is_refused(self, store: Store) -> None:
        job = running_job(store)
        store.finish([finished(job, None, next_job(job))])
        with pytest.raises(DuplicateJobId), transaction.atomic(using=store.using):
            store.create([next_job(job)])

    def test_a_try_that_failed_is_recorded_and_the_job_is_due_again(self, store: Store) -> None:
        job, effects = running_job(store), Effects()
        assert store.reschedule([failed_try(job, delay_seconds=600)], effects) == {job.key: "pending"}
        saved = stored(store, job)
        assert (saved.status, saved.attempt, saved.last_error, saved.leased_by) == ("pending", 1, "Boom: no", None)
        assert history(store) == [(job.id, 1, "error", "Boom: no")]
        assert FailedAttempt.objects.using(store.using).get().traceback == "Traceback …"
        assert effects.due_types == {SHIP}
        assert claim(store) == []
        store.ahead_seconds = 601
        assert [again.attempt for again in claim(store)] == [2]

    def test_a_job_that_is_given_up_has_failed(self, store: Store) -> None:
        job, effects = running_job(store), Effects()
        assert store.fail([failed_try(job)], effects) == {job.key: "failed"}
        saved = stored(store, job)
        assert (saved.status, saved.last_error, saved.leased_by) == ("failed", "Boom: no", None)
        assert saved.finished_at is not None
        assert history(store) == [(job.id, 1, "error", "Boom: no")]
        assert effects.finished_chains == {job.chain_id}

    def test_a_job_that_is_handed_back_is_as_before(self, store: Store) -> None:
        job = running_job(store)
        assert store.hand_back([lease(job)]) == {job.key}
        saved = stored(store, job)
        assert (saved.status, saved.attempt, saved.run_at, saved.leased_by) == ("pending", 0, job.run_at, None)
        assert history(store) == []
        assert [again.lease_number for again in claim(store)] == [2]

    def test_a_lease_is_prolonged(self, store: Store) -> None:
        job = running_job(store)
        until = stored(store, job).leased_until
        store.ahead_seconds = LEASE_SECONDS / 2
        assert not store.check([lease(job)]).lost
        assert stored(store, job).leased_until == until
        renewal = store.renew([lease(job)])
        assert (renewal.lost, renewal.cancelled) == ({}, set())
        assert until is not None
        assert (stored(store, job).leased_until or until) - until > timedelta(seconds=LEASE_SECONDS / 3)

    def test_it_is_said_why_a_lease_is_lost(self, store: Store) -> None:
        gone, done, cancelled, taken = running(store, 4)
        store.delete([gone.chain_id], cascade=False, effects=Effects())
        store.finish([finished(done)])
        store.hand_back([lease(cancelled)])
        store.cancel([cancelled.chain_id], Effects())
        taken_over(store, taken)
        reasons = {
            gone.key: "not_found",
            done.key: "already_completed",
            cancelled.key: "cancelled",
            taken.key: "taken_by_another_worker",
        }
        leases = [lease(job) for job in (gone, done, cancelled, taken)]
        assert (store.check(leases).lost, store.renew(leases).lost) == (reasons, reasons)

    def test_it_is_said_which_attempts_are_to_stop(self, store: Store) -> None:
        job, other = running(store, 2)
        store.cancel([job.chain_id], Effects())
        leases = [lease(job), lease(other)]
        assert store.check(leases).cancelled == store.renew(leases).cancelled == {job.key}
        assert not store.renew(leases).lost

    @ends
    def test_a_stale_attempt_changes_nothing(self, store: Store, end: End) -> None:
        stale = running_job(store)
        taken_over(store, stale)
        before = tables(store)
        assert not end(store, [stale])
        assert store.renew([lease(stale)]).lost
        assert tables(store) == before

    @ends
    def test_an_attempt_ends_once(self, store: Store, end: End) -> None:
        job = running_job(store)
        assert end(store, [job])
        before = tables(store)
        assert not any(again(store, [job]) for again in ENDS.values())
        assert tables(store) == before

    @ends
    def test_of_a_batch_those_are_ended_that_hold_their_lease(self, store: Store, end: End) -> None:
        stale = running(store, 2)
        taken_over(store, stale[0])  # and with it the other
        fresh = running(store, 2)
        before = [row for row in tables(store)[0] if row["id"] in {job.id for job in stale}]
        assert set(end(store, [stale[0], fresh[0], stale[1], fresh[1]])) == {job.key for job in fresh}
        assert [row for row in tables(store)[0] if row["id"] in {job.id for job in stale}] == before

    @ends
    def test_an_attempt_that_was_asked_to_stop_ends_cancelled_unless_it_completed(self, store: Store, end: End) -> None:
        job = running_job(store)
        store.cancel([job.chain_id], Effects())
        assert end(store, [job])
        last = Job.objects.using(store.using).filter(chain_id=job.chain_id).order_by("-chain_index")[0]
        is_completed = end in (ENDS["finish"], ENDS["finish_locked"])
        assert last.status == ("completed" if is_completed else "cancelled")
        assert last.finished_at is not None
        assert claim(store) == []

    def test_a_job_whose_lease_ran_out_is_taken_back(self, store: Store) -> None:
        job, effects = running_job(store), Effects()
        let_leases_end(store)
        (reaped,) = store.reap(10, Backoff(600, 1, 600, 0), MAX_CRASHES, (), effects)
        assert reaped == (job.id, SHIP, "pending", 1)
        saved = stored(store, job)
        assert (saved.status, saved.crashes, saved.leased_by, saved.leased_until) == ("pending", 1, None, None)
        assert [(id_, attempt, kind) for id_, attempt, kind, _ in history(store)] == [(job.id, 1, "crash")]
        assert WORKER in (saved.last_error or "")
        assert effects.due_types == {SHIP}
        assert claim(store) == []
        store.ahead_seconds += 601
        assert [again.attempt for again in claim(store)] == [2]

    def test_a_job_that_crashed_too_often_has_failed(self, store: Store) -> None:
        job = running_job(store)
        for _ in range(MAX_CRASHES):
            let_leases_end(store)
            (reaped,) = store.reap(10, AT_ONCE, MAX_CRASHES)
            claim(store)
        assert (reaped.status, reaped.crashes) == ("failed", MAX_CRASHES)
        assert statuses(store, job) == ["failed"]
        assert len(history(store)) == MAX_CRASHES

    def test_a_lease_that_runs_or_is_the_callers_own_is_left(self, store: Store) -> None:
        own, lapsed = running(store, 2)
        let_leases_end(store)
        live = running_job(store)
        assert [reaped.id for reaped in store.reap(10, AT_ONCE, MAX_CRASHES, [own.id])] == [lapsed.id]
        assert statuses(store, own, live) == ["running", "running"]

    def test_the_leases_that_ran_out_first_are_taken_back_first(self, store: Store) -> None:
        ids = [running_job(store, priority=number).id for number in range(3)]
        let_leases_end(store)
        assert [reaped.id for reaped in store.reap(1, Backoff(), MAX_CRASHES)] == ids[:1]
        assert [reaped.id for reaped in store.reap(5, Backoff(), MAX_CRASHES)] == ids[1:]

    def test_a_lock_tells_the_status_and_lease_number(self, store: Store) -> None:
        job = running_job(store)
        (pending,) = create(store)
        gone = new_job().id
        with store.transaction():
            assert [store.lock(id_) for id_ in (job.id, pending, gone)] == [("running", 1), ("pending", 0), None]
            locked = store.lock_all([job.id, pending, gone])
        assert locked == {job.id: ("running", 1), pending: ("pending", 0)}
        assert (store.look(job.id), store.look(gone)) == (("running", 1), None)

    @committing
    @pytest.mark.parametrize("end", ["ROLLBACK", "COMMIT"])
    @pytest.mark.parametrize("count", [1, 2])
    def test_a_transaction_that_was_ended_finishes_and_renews_nothing(self, store: Store, end: str, count: int) -> None:
        jobs, locked_in, before = running(store, count), OpenTransaction(), tables(store)
        with pytest.raises(TransactionEnded), transaction.atomic(using=store.using):
            if count == 1:
                store.lock(jobs[0].id, locked_in)
            else:
                store.lock_all([job.id for job in jobs], locked_in)
            with store.connection.cursor() as cursor:
                cursor.execute(end)
                cursor.execute("BEGIN")
            with pytest.raises(TransactionEnded):
                store.renew([lease(job) for job in jobs], locked_in)
            store.finish([finished(job) for job in jobs], is_locked=True, transaction=locked_in)
        assert tables(store) == before

    @committing
    @meetings
    def test_who_ends_an_attempt_first_wins_and_the_second_changes_nothing(
        self, store: Store, first: str, second: str
    ) -> None:
        job = running_job(store)
        let_leases_end(store)
        winner = self.holding(store, lambda: (ALL_ENDS[first](store, [job]), tables(store)))
        loser = self.waiting(store, lambda: ALL_ENDS[second](store, [job]))
        winner.go_on()
        ended, after = winner.result()
        assert ended
        assert not loser.result()
        assert tables(store) == after

    @committing
    @meetings
    def test_one_that_is_rolled_back_has_ended_nothing(self, store: Store, first: str, second: str) -> None:
        job = running_job(store)
        let_leases_end(store)
        undone = self.holding(store, lambda: ALL_ENDS[first](store, [job]))
        other = self.waiting(store, lambda: ALL_ENDS[second](store, [job]))
        undone.go_on(roll_back=True)
        undone.result()
        # Most pass over what is locked, and come again.
        assert other.result() or ALL_ENDS[second](store, [job])
        assert len(history(store)) == (second in ("reschedule", "fail", "reap"))

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_the_reaper_passes_by_a_job_that_its_attempt_has_locked(self, store: Store) -> None:
        locked, lapsed = running(store, 2)
        let_leases_end(store)
        self.holding(store, lambda: store.lock(locked.id))
        reaped = self.elsewhere(store, lambda: store.reap(10, AT_ONCE, MAX_CRASHES))
        assert [job.id for job in reaped] == [lapsed.id]
