"""An attempt ends once, by the worker that holds its lease. A stale attempt changes nothing."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import transaction

from django_jobchains.exceptions import DuplicateJobId, TransactionEnded
from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.statuses import TRANSITIONS
from django_jobchains.store.database import OpenTransaction
from django_jobchains.store.rows import Effects
from tests.store.contract.ends import CALLS, ENDS, ends
from tests.support.connections import committing
from tests.support.jobs import (
    MAIL,
    SHIP,
    WORKER,
    changes,
    claim,
    create,
    database_now,
    failed_try,
    finished,
    history,
    lease,
    lost,
    new_job,
    next_job,
    row,
    running,
    running_job,
    statuses,
    stored,
    tables,
    taken_over,
)

pytestmark = pytest.mark.django_db

#: The methods that write what an attempt has done, and check its lease number.
WRITERS = {
    **ENDS,
    "renew": lambda store, jobs: {job.key for job in jobs} - set(CALLS["renew"](store, jobs).lost),
}
writers = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
moves = pytest.mark.parametrize("move", ["reschedule", "fail"])
NO_LEASE = {"leased_by": None, "leased_until": None}


# Completed attempts


def test_finish_writes_output_worker_and_time_and_nothing_else(store):
    jobs, effects = running(store, 3), Effects()
    before, start = [row(job) for job in jobs], database_now()
    outcomes = [finished(job, f'{{"n": {n}}}') for n, job in enumerate(jobs)]
    assert store.attempts.finish(outcomes, effects) == {job.key for job in jobs}
    for number, old in enumerate(before):
        changed = changes(old)
        assert start <= changed.pop("finished_at") <= database_now()
        assert changed == {**NO_LEASE, "status": "completed", "output": {"n": number}, "completed_by": WORKER}
    assert effects.finished_chains == {job.chain_id for job in jobs}


def test_success_clears_the_last_error_and_keeps_the_history(store):
    job = running_job(store)
    store.attempts.reschedule([failed_try(job)])
    store.attempts.finish([finished(claim(store)[0])])
    assert stored(job).last_error is None
    assert FailedAttempt.objects.count() == 1


def test_a_chain_continues(store):
    job, effects = running_job(store), Effects()
    step = next_job(job, input='{"step": 2}', queue="mail", priority=8, max_attempts=2, delay_seconds=600)
    assert store.attempts.finish([finished(job, None, step)], effects) == {job.key}
    assert statuses(job, step.id) == ["completed", "pending"]
    assert stored(job).output is None
    assert effects.finished_chains == set()
    assert effects.due_types == {MAIL}
    chain = Chain.objects.get(pk=job.chain_id)
    assert (chain.status, chain.current_job_id) == ("pending", step.id)
    saved = stored(step.id)
    assert (saved.chain_id, saved.chain_index, saved.chain_type_name, saved.input) == (job.id, 1, SHIP, {"step": 2})
    assert (saved.queue, saved.priority, saved.max_attempts) == ("mail", 8, 2)
    assert 599 < (saved.run_at - saved.created_at).total_seconds() < 601


def test_a_batch_may_end_and_continue_chains(store):
    ending, *continuing = running(store, 3)
    steps = [finished(job, None, next_job(job, input=f'"after {job.id}"')) for job in continuing]
    effects = Effects()
    store.attempts.finish([finished(ending, "1"), *steps], effects)
    assert effects.due_counts == {MAIL: 2}
    assert (stored(ending).output, effects.finished_chains) == (1, {ending.id})
    for job in continuing:
        assert Job.objects.get(chain_id=job.id, chain_index=1).input == f"after {job.id}"


def test_a_chain_continues_once(store):
    """Both attempts of a step return a continuation, and only the later attempt's is stored."""
    stale = running_job(store)
    fresh = taken_over(store, stale)
    steps = {job: next_job(job) for job in (stale, fresh)}
    assert store.attempts.finish([finished(job, None, step) for job, step in steps.items()]) == {fresh.key}
    assert {job.id for job in Job.objects.all()} == {fresh.id, steps[fresh].id}


@committing
def test_a_continuation_that_cannot_be_created_rolls_back_the_whole_batch(store):
    jobs = running(store, 3)
    [existing] = create(store)
    before = tables()
    with pytest.raises(DuplicateJobId):
        continued = [
            finished(job, None, next_job(job, id=id_)) for job, id_ in zip(jobs[1:], (None, existing), strict=True)
        ]
        store.attempts.finish([finished(jobs[0]), *continued])
    assert tables() == before


# Failed attempts


def test_reschedule_makes_jobs_due_after_their_delay_or_at_their_date_and_changes_nothing_else(store):
    jobs, effects = running(store, 3), Effects()
    before, start = [row(job) for job in jobs], database_now()
    date = start.replace(microsecond=654_321) + timedelta(days=3)
    whens = [{"delay_seconds": 10.5}, {"delay_seconds": 11.5}, {"run_at": date}]
    tries = [failed_try(job, error=f"Boom {n}", **whens[n]) for n, job in enumerate(jobs)]
    assert store.attempts.reschedule(tries, effects) == {job.key: "pending" for job in jobs}
    assert stored(jobs[2]).run_at == date
    for number, old in enumerate(before):
        changed, wait = changes(old), timedelta(seconds=10.5 + number)
        assert start + wait <= changed.pop("run_at") <= (date if number == 2 else database_now() + wait)
        assert changed == {**NO_LEASE, "status": "pending", "last_error": f"Boom {number}"}
    assert (effects.due_types, effects.finished_chains) == ({SHIP}, set())


def test_fail_marks_jobs_as_failed_and_changes_nothing_else(store):
    jobs, effects = running(store, 3), Effects()
    before, start = [row(job) for job in jobs], database_now()
    assert store.attempts.fail([failed_try(job) for job in jobs], effects) == {job.key: "failed" for job in jobs}
    for old in before:
        changed = changes(old)
        assert start <= changed.pop("finished_at") <= database_now()
        assert changed == {**NO_LEASE, "status": "failed", "last_error": "Boom: no"}
    assert effects.finished_chains == {job.chain_id for job in jobs}


@moves
def test_each_failed_attempt_is_recorded_and_crashes_are_counted(store, move):
    jobs = running(store, 3)
    start = database_now()
    kinds = ("error", "crash", "timeout")
    tries = [failed_try(job, error=f"Boom {n}", traceback=f"line {n}", kind=kinds[n]) for n, job in enumerate(jobs)]
    getattr(store.attempts, move)(tries)
    assert [(stored(job).attempt, stored(job).crashes) for job in jobs] == [(1, 0), (1, 1), (1, 0)]
    assert FailedAttempt.objects.count() == 3
    for number, job in enumerate(jobs):
        values = FailedAttempt.objects.values().get(job_id=job.id)
        assert start <= values.pop("finished_at") <= database_now()
        assert values == {
            "id": values["id"],
            "job_id": job.id,
            "attempt": 1,
            "lease_number": 1,
            "kind": kinds[number],
            "error": f"Boom {number}",
            "traceback": f"line {number}",
            "worker": WORKER,
            "started_at": stored(job).last_attempt_at,
        }


@pytest.mark.parametrize("when", [{"run_at": datetime(2020, 1, 1, tzinfo=UTC)}, {"delay_seconds": 1e-7}, {}])
def test_a_job_is_never_due_before_now(store, when):
    job, start = running_job(store), database_now()
    store.attempts.reschedule([failed_try(job, **when)])
    assert start <= stored(job).run_at <= database_now() + timedelta(milliseconds=1)


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


# Attempts that are returned to the queue


def test_hand_back_reduces_the_attempts_and_changes_nothing_else(store):
    jobs = running(store, 3)
    before = [row(job) for job in jobs]
    assert store.attempts.hand_back([job.key for job in jobs]) == {job.key for job in jobs}
    for old in before:
        assert changes(old) == {**NO_LEASE, "status": "pending", "attempt": 0}


# Stale attempts


def test_every_fenced_move_is_tested():
    assert {row.move for row in TRANSITIONS if row.fenced} == WRITERS.keys() & {row.move for row in TRANSITIONS}


@writers
@pytest.mark.parametrize("off", [-1, 1, 1_000_000])
def test_a_wrong_lease_number_changes_nothing(store, write, off):
    job = running_job(store)
    before = tables()
    number = job.lease_number + off
    assert not write(store, [job._replace(lease_number=number, key=(job.id, number))])
    assert tables() == before


@writers
def test_an_attempt_whose_job_was_deleted_changes_nothing(store, write):
    job, other = running(store, 2)
    Job.objects.filter(pk=job.id).delete()
    before = tables()
    assert not write(store, [job])
    assert tables() == before
    assert stored(other).status == "running"


@ends
def test_an_attempt_ends_once(store, end):
    job = running_job(store)
    assert end(store, [job])
    before = tables()
    assert not any(again(store, [job]) for again in ENDS.values())
    assert tables() == before


@ends
@pytest.mark.parametrize("turned", [False, True], ids=["stale_first", "fresh_first"])
def test_only_the_fresh_one_of_two_attempts_of_one_job_is_written(store, end, turned):
    stale = running_job(store)
    fresh = taken_over(store, stale)
    assert set(end(store, [fresh, stale] if turned else [stale, fresh])) == {fresh.key}
    assert stored(fresh).leased_by is None


def test_values_of_the_fresh_attempt_are_written(store):
    stale = running_job(store)
    fresh = taken_over(store, stale)
    assert store.attempts.finish([finished(stale, '"stale"'), finished(fresh, '"fresh"')]) == {fresh.key}
    assert stored(fresh).output == "fresh"


@moves
def test_stale_failure_is_not_recorded(store, move):
    stale = running_job(store)
    fresh = taken_over(store, stale)
    getattr(store.attempts, move)([failed_try(stale, error="stale"), failed_try(fresh, error="fresh")])
    assert [(row.lease_number, row.error) for row in FailedAttempt.objects.all()] == [(fresh.lease_number, "fresh")]


@writers
def test_nothing_is_written_for_an_empty_batch(store, write):
    assert not write(store, [])
    assert store.leases.renew([]) == store.leases.check([]) == lost({})


@ends
def test_an_attempt_that_was_asked_to_stop_ends_cancelled_unless_it_completed(store, end):
    job = running_job(store)
    store.chains.cancel([job.chain_id], Effects())
    assert end(store, [job])
    last = Job.objects.filter(chain_id=job.chain_id).order_by("-chain_index")[0]
    is_completed = end in (ENDS["finish"], ENDS["finish_locked"])
    assert last.status == ("completed" if is_completed else "cancelled")
    assert last.finished_at is not None
    assert history() == []
    assert claim(store) == []


@moves
def test_an_attempt_that_ends_after_the_cancellation_is_not_counted_unless_it_crashed(store, move):
    cancelled, crashed, failed = (running_job(store) for _ in range(3))
    store.chains.cancel([cancelled.chain_id, crashed.chain_id], Effects())
    tries = [failed_try(cancelled), failed_try(crashed, kind="crash"), failed_try(failed)]
    assert len(getattr(store.attempts, move)(tries)) == 3
    assert {row.job_id for row in FailedAttempt.objects.all()} == {crashed.id, failed.id}
    counted = {job.id: (job.counted_attempts, job.crashes) for job in Job.objects.all()}
    assert counted == {cancelled.id: (0, 0), crashed.id: (0, 1), failed.id: (1, 0)}


# Locks and transactions


def test_a_lock_returns_the_status_and_lease_number(store):
    job = running_job(store)
    (pending,) = create(store)
    gone = new_job().id
    with store.db.transaction():
        found = [store.attempts.lock(id_) for id_ in (job.id, pending, gone)]
        locked = store.attempts.lock_all([job.id, pending, gone])
    assert found == [("running", 1), ("pending", 0), None]
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
