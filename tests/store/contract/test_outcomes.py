"""Every write of an attempt checks its lease number, so that a stale attempt changes nothing."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from django_jobchains.exceptions import DuplicateJobId, TransactionEnded
from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.policies import Backoff
from django_jobchains.store import AttemptKey, ClaimedJob, Effects, OpenTransaction, Store
from tests.support.connections import committing, holding, waiting
from tests.support.jobs import (
    AT_ONCE,
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

pytestmark = pytest.mark.django_db

End = Callable[[Store, Sequence[ClaimedJob]], Any]


def finish_locked(store: Store, jobs: Sequence[ClaimedJob]) -> set[AttemptKey]:
    """End attempts like ``job.complete()``: lock the rows, check the leases, and finish."""
    with store.db.transaction():
        held = [job for job in jobs if store.attempts.lock(job.id) == ("running", job.lease_number)]
        return store.attempts.finish([finished(job) for job in held], is_locked=True)


#: Every method that ends attempts. Each returns the attempts that it ended.
ENDS: dict[str, End] = {
    "finish": lambda store, jobs: store.attempts.finish([finished(job) for job in jobs]),
    "finish_locked": finish_locked,
    "continue": lambda store, jobs: store.attempts.finish([finished(job, None, next_job(job)) for job in jobs]),
    "reschedule": lambda store, jobs: store.attempts.reschedule([failed_try(job, delay_seconds=600) for job in jobs]),
    "reschedule_as_asked": lambda store, jobs: store.attempts.reschedule(
        [failed_try(job, delay_seconds=600, is_failure=False) for job in jobs]
    ),
    "fail": lambda store, jobs: store.attempts.fail([failed_try(job) for job in jobs]),
    "hand_back": lambda store, jobs: store.attempts.hand_back([job.key for job in jobs]),
}
#: The same methods and the reaper, which finds attempts by their expired leases.
ALL_ENDS: dict[str, End] = {**ENDS, "reap": lambda store, jobs: store.leases.reap(10, Backoff(), MAX_CRASHES)}
ends = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
#: Pairs of methods that conflict.
CONFLICTS = (
    ("finish", "finish"),
    ("finish", "reap"),
    ("reap", "finish"),
    ("reap", "finish_locked"),
    ("finish_locked", "reap"),
    ("continue", "continue"),
    ("fail", "continue"),
    ("continue", "fail"),
    ("reschedule", "hand_back"),
    ("hand_back", "reschedule"),
)
conflicts = pytest.mark.parametrize(("first", "second"), CONFLICTS)


def test_a_job_is_finished(store):
    job, effects = running_job(store), Effects()
    assert store.attempts.finish([finished(job, '{"parcels": 2}')], effects) == {job.key}
    saved = stored(job)
    assert (saved.status, saved.output, saved.completed_by) == ("completed", {"parcels": 2}, WORKER)
    assert (saved.leased_by, saved.leased_until, saved.last_error) == (None, None, None)
    assert saved.finished_at is not None
    assert effects.finished_chains == {job.chain_id}


def test_a_chain_continues(store):
    job, effects = running_job(store), Effects()
    step = next_job(job, input='{"step": 2}')
    assert store.attempts.finish([finished(job, None, step)], effects) == {job.key}
    assert statuses(job, step.id) == ["completed", "pending"]
    assert stored(job).output is None
    assert effects.finished_chains == set()
    assert effects.due_counts == {MAIL: 1}
    chain = Chain.objects.get(pk=job.chain_id)
    assert (chain.status, chain.current_job_id) == ("pending", step.id)
    (claimed,) = claim(store)
    assert (claimed.id, claimed.chain_id, claimed.chain_index, claimed.chain_type_name) == (
        step.id,
        job.chain_id,
        1,
        SHIP,
    )


def test_a_chain_continues_once(store):
    """Both attempts of a step return a continuation, and only the later attempt's is stored."""
    stale = running_job(store)
    fresh = taken_over(store, stale)
    steps = {job: next_job(job) for job in (stale, fresh)}
    assert store.attempts.finish([finished(job, None, step) for job, step in steps.items()]) == {fresh.key}
    assert {job.id for job in Job.objects.all()} == {fresh.id, steps[fresh].id}
    assert store.attempts.finish([finished(stale, None, next_job(stale))]) == set()
    assert Job.objects.count() == 2


def test_a_step_that_exists_is_refused(store):
    job = running_job(store)
    store.attempts.finish([finished(job, None, next_job(job))])
    with pytest.raises(DuplicateJobId), transaction.atomic():
        store.jobs.create([next_job(job)])


def test_a_failed_attempt_is_recorded_and_the_job_is_due_again(store):
    job, effects = running_job(store), Effects()
    assert store.attempts.reschedule([failed_try(job, delay_seconds=600)], effects) == {job.key: "pending"}
    saved = stored(job)
    assert (saved.status, saved.attempt, saved.last_error, saved.leased_by) == ("pending", 1, "Boom: no", None)
    assert history() == [(job.id, 1, "error", "Boom: no")]
    assert FailedAttempt.objects.get().traceback == "Traceback …"
    assert effects.due_types == {SHIP}
    assert claim(store) == []
    store.db.ahead_seconds = 601
    assert [again.attempt for again in claim(store)] == [2]


def test_an_attempt_that_asked_for_another_one_is_counted_but_not_recorded(store):
    job, effects = running_job(store), Effects()
    asked = failed_try(job, error="", delay_seconds=600, is_failure=False)
    assert store.attempts.reschedule([asked], effects) == {job.key: "pending"}
    saved = stored(job)
    assert (saved.status, saved.attempt, saved.reschedules, saved.last_error) == ("pending", 1, 1, None)
    assert (saved.leased_by, saved.leased_until, history()) == (None, None, [])
    assert effects.due_types == {SHIP}
    assert claim(store) == []
    store.db.ahead_seconds = 601
    [again] = claim(store)
    assert (again.attempt, again.reschedules, again.failures) == (2, 1, 1)


def test_a_request_for_another_attempt_keeps_the_last_error_unless_it_has_a_reason(store):
    for error, expected in (("", "Boom: no"), ("not ready", "not ready")):
        job = running_job(store)
        store.attempts.reschedule([failed_try(job)])
        [again] = claim(store)
        store.attempts.reschedule([failed_try(again, error=error, delay_seconds=600, is_failure=False)])
        assert stored(job).last_error == expected


def test_a_job_without_attempts_left_has_failed(store):
    job, effects = running_job(store), Effects()
    assert store.attempts.fail([failed_try(job)], effects) == {job.key: "failed"}
    saved = stored(job)
    assert (saved.status, saved.last_error, saved.leased_by) == ("failed", "Boom: no", None)
    assert saved.finished_at is not None
    assert history() == [(job.id, 1, "error", "Boom: no")]
    assert effects.finished_chains == {job.chain_id}


def test_a_job_that_is_handed_back_is_unchanged(store):
    job = running_job(store)
    assert store.attempts.hand_back([job.key]) == {job.key}
    saved = stored(job)
    assert (saved.status, saved.attempt, saved.run_at, saved.leased_by) == ("pending", 0, job.run_at, None)
    assert history() == []
    assert [again.lease_number for again in claim(store)] == [2]


@ends
def test_a_stale_attempt_changes_nothing(store, end):
    stale = running_job(store)
    taken_over(store, stale)
    before = tables()
    assert not end(store, [stale])
    assert store.leases.renew([lease(stale)]).lost
    assert tables() == before


@ends
def test_an_attempt_ends_once(store, end):
    job = running_job(store)
    assert end(store, [job])
    before = tables()
    assert not any(again(store, [job]) for again in ENDS.values())
    assert tables() == before


@ends
def test_a_batch_ends_the_attempts_that_hold_their_lease(store, end):
    stale = running(store, 2)
    let_leases_end(store)
    store.leases.reap(10, AT_ONCE, MAX_CRASHES)
    claim(store)
    fresh = running(store, 2)
    before = [row for row in tables()[0] if row["id"] in {job.id for job in stale}]
    assert set(end(store, [stale[0], fresh[0], stale[1], fresh[1]])) == {job.key for job in fresh}
    assert [row for row in tables()[0] if row["id"] in {job.id for job in stale}] == before


@ends
def test_an_attempt_that_was_asked_to_stop_ends_cancelled_unless_it_completed(store, end):
    job = running_job(store)
    store.chains.cancel([job.chain_id], Effects())
    assert end(store, [job])
    last = Job.objects.filter(chain_id=job.chain_id).order_by("-chain_index")[0]
    is_completed = end in (ENDS["finish"], ENDS["finish_locked"])
    assert last.status == ("completed" if is_completed else "cancelled")
    assert last.finished_at is not None
    assert claim(store) == []


def test_a_lock_returns_the_status_and_lease_number(store):
    job = running_job(store)
    (pending,) = create(store)
    gone = new_job().id
    with store.db.transaction():
        assert [store.attempts.lock(id_) for id_ in (job.id, pending, gone)] == [
            ("running", 1),
            ("pending", 0),
            None,
        ]
        locked = store.attempts.lock_all([job.id, pending, gone])
    assert locked == {job.id: ("running", 1), pending: ("pending", 0)}
    assert (store.jobs.state_of(job.id), store.jobs.state_of(gone)) == (("running", 1), None)


@committing
@pytest.mark.parametrize("is_awaited", [False, True])
def test_the_last_statement_of_a_transaction_may_commit_it(store, is_awaited):
    job, locked_in, effects = running_job(store), OpenTransaction(), Effects()
    waiting = create(store, blockers=(job.chain_id,)) if is_awaited else []
    with transaction.atomic():
        store.attempts.lock(job.id, locked_in)
        finish = partial(store.attempts.finish, is_locked=True, transaction=locked_in, is_last=True)
        assert finish([finished(job)], effects) == {job.key}
    assert (statuses(job), effects.finished_chains) == (["completed"], {job.chain_id})
    assert statuses(*waiting) == ["pending"] * len(waiting)


@committing
@pytest.mark.parametrize("end", ["ROLLBACK", "COMMIT"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_transaction_that_was_ended_finishes_and_renews_nothing(store, end, count):
    jobs, locked_in, before = running(store, count), OpenTransaction(), tables()
    with pytest.raises(TransactionEnded), transaction.atomic():
        if count == 1:
            store.attempts.lock(jobs[0].id, locked_in)
        else:
            store.attempts.lock_all([job.id for job in jobs], locked_in)
        with store.connection.cursor() as cursor:
            cursor.execute(end)
            cursor.execute("BEGIN")
        with pytest.raises(TransactionEnded):
            store.leases.renew([lease(job) for job in jobs], locked_in)
        store.attempts.finish([finished(job) for job in jobs], is_locked=True, transaction=locked_in)
    assert tables() == before


@committing
@conflicts
def test_the_first_end_of_an_attempt_wins_and_the_second_changes_nothing(store, first, second):
    job = running_job(store)
    let_leases_end(store)
    winner = holding(lambda store: (ALL_ENDS[first](store, [job]), tables()))
    loser = waiting(lambda store: ALL_ENDS[second](store, [job]))
    winner.go_on()
    ended, after = winner.result()
    assert ended
    assert not loser.result()
    assert tables() == after


@committing
@conflicts
def test_an_end_that_is_rolled_back_changes_nothing(store, first, second):
    job = running_job(store)
    let_leases_end(store)
    undone = holding(lambda store: ALL_ENDS[first](store, [job]))
    other = waiting(lambda store: ALL_ENDS[second](store, [job]))
    undone.go_on(roll_back=True)
    undone.result()
    # Most methods skip a locked job, and are called again later.
    assert other.result() or ALL_ENDS[second](store, [job])
    assert len(history()) == (second in ("reschedule", "fail", "reap"))
