"""An attempt ends once, by the worker that holds its lease. A stale attempt changes nothing."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import transaction

from django_jobchains.exceptions import DuplicateJobId, TransactionEnded
from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.statuses import TRANSITIONS
from django_jobchains.store.rows import Effects, OpenTransaction
from tests.store.contract.ends import ENDS, ends
from tests.support.connections import committing, holding
from tests.support.jobs import (
    AT_ONCE,
    MAIL,
    MAX_CRASHES,
    SHIP,
    WORKER,
    claim,
    create,
    database_now,
    failed_try,
    finished,
    history,
    lease,
    let_leases_end,
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
    "renew": lambda store, jobs: {job.key for job in jobs} - set(store.leases.renew([lease(job) for job in jobs]).lost),
}
writers = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
counts = pytest.mark.parametrize("count", [1, 3])
moves = pytest.mark.parametrize("move", ["reschedule", "fail"])


# Completed attempts


@counts
def test_finish_writes_output_worker_and_time_and_nothing_else(store, count):
    jobs, effects = running(store, count), Effects()
    before = {job.id: row(job) for job in jobs}
    start = database_now()
    outcomes = [finished(job, f'{{"n": {n}}}') for n, job in enumerate(jobs)]
    assert store.attempts.finish(outcomes, effects) == {job.key for job in jobs}
    for number, job in enumerate(jobs):
        changed = {name: value for name, value in row(job).items() if value != before[job.id][name]}
        assert start <= changed.pop("finished_at") <= database_now()
        assert changed == {
            "status": "completed",
            "output": {"n": number},
            "completed_by": WORKER,
            "leased_by": None,
            "leased_until": None,
        }
    assert effects.finished_chains == {job.chain_id for job in jobs}


def test_a_job_without_output_has_the_output_none(store):
    job = running_job(store)
    store.attempts.finish([finished(job, None)])
    assert stored(job).output is None


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
    assert store.attempts.finish([finished(stale, None, next_job(stale))]) == set()
    assert Job.objects.count() == 2


@committing
def test_a_continuation_that_cannot_be_created_rolls_back_the_whole_batch(store):
    jobs = running(store, 3)
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


@committing
def test_a_continuation_that_cannot_be_created_rolls_back_the_callers_transaction(store):
    jobs = running(store, 2)
    store.jobs.create([next_job(jobs[0])])
    before = tables()
    with pytest.raises(DuplicateJobId):  # noqa: SIM117 - the error leaves the transaction
        with transaction.atomic():
            store.attempts.finish([finished(jobs[1])])
            store.attempts.finish([finished(jobs[0], None, next_job(jobs[0]))])
    assert tables() == before


@committing
def test_the_rest_of_a_batch_can_be_finished_after_a_continuation_that_cannot_be_created(store):
    jobs = running(store, 3)
    store.jobs.create([next_job(jobs[0])])
    with pytest.raises(DuplicateJobId):
        store.attempts.finish([finished(job, None, next_job(job)) for job in jobs])
    assert store.attempts.finish([finished(job, None, next_job(job)) for job in jobs[1:]]) == {
        job.key for job in jobs[1:]
    }


# Failed attempts


@counts
def test_reschedule_makes_jobs_due_after_their_delay_and_changes_nothing_else(store, count):
    jobs, effects = running(store, count), Effects()
    before = {job.id: row(job) for job in jobs}
    start = database_now()
    tries = [failed_try(job, error=f"Boom {n}", delay_seconds=10.5 + n) for n, job in enumerate(jobs)]
    assert store.attempts.reschedule(tries, effects) == {job.key: "pending" for job in jobs}
    for number, job in enumerate(jobs):
        changed = {name: value for name, value in row(job).items() if value != before[job.id][name]}
        wait = timedelta(seconds=10.5 + number)
        assert start + wait <= changed.pop("run_at") <= database_now() + wait
        assert changed == {"status": "pending", "leased_by": None, "leased_until": None, "last_error": f"Boom {number}"}
    assert (effects.due_types, effects.finished_chains) == ({SHIP}, set())


@counts
def test_fail_marks_jobs_as_failed_and_changes_nothing_else(store, count):
    jobs, effects = running(store, count), Effects()
    before = {job.id: row(job) for job in jobs}
    start = database_now()
    assert store.attempts.fail([failed_try(job) for job in jobs], effects) == {job.key: "failed" for job in jobs}
    for job in jobs:
        changed = {name: value for name, value in row(job).items() if value != before[job.id][name]}
        assert start <= changed.pop("finished_at") <= database_now()
        assert changed == {"status": "failed", "leased_by": None, "leased_until": None, "last_error": "Boom: no"}
    assert effects.finished_chains == {job.chain_id for job in jobs}


@moves
@counts
def test_error_traceback_worker_and_times_of_each_failed_attempt_are_recorded(store, move, count):
    jobs = running(store, count)
    start = database_now()
    getattr(store.attempts, move)(
        [failed_try(job, error=f"Boom {n}", traceback=f"line {n}") for n, job in enumerate(jobs)]
    )
    assert FailedAttempt.objects.count() == count
    for number, job in enumerate(jobs):
        failure = FailedAttempt.objects.get(job_id=job.id)
        values = FailedAttempt.objects.values().get(pk=failure.pk)
        assert start <= values.pop("finished_at") <= database_now()
        assert values == {
            "id": failure.pk,
            "job_id": job.id,
            "attempt": 1,
            "lease_number": 1,
            "kind": "error",
            "error": f"Boom {number}",
            "traceback": f"line {number}",
            "worker": WORKER,
            "started_at": stored(job).last_attempt_at,
        }


@moves
@counts
def test_crashes_are_counted_and_timeouts_are_not(store, move, count):
    crashed, late = running(store, count), running(store, count)
    tries = [failed_try(job, kind="crash") for job in crashed] + [failed_try(job, kind="timeout") for job in late]
    getattr(store.attempts, move)(tries)
    assert {(stored(job).attempt, stored(job).crashes) for job in crashed} == {(1, 1)}
    assert {(stored(job).attempt, stored(job).crashes) for job in late} == {(1, 0)}
    kinds = FailedAttempt.objects.values_list("job_id", "kind")
    assert set(kinds) == {(job.id, "crash") for job in crashed} | {(job.id, "timeout") for job in late}


@pytest.mark.parametrize("others", [0, 3])
def test_a_job_is_retried_at_the_given_date(store, others):
    job, *rest = running(store, 1 + others)
    wanted = (database_now() + timedelta(days=3)).replace(microsecond=654_321)
    store.attempts.reschedule([failed_try(job, run_at=wanted), *(failed_try(other, delay_seconds=1) for other in rest)])
    assert stored(job).run_at == wanted
    assert all(stored(other).run_at < database_now() + timedelta(seconds=20) for other in rest)


@pytest.mark.parametrize(
    "when",
    [{"run_at": datetime(2020, 1, 1, tzinfo=UTC)}, {"delay_seconds": 0}, {}],
    ids=["past date", "no delay", "neither"],
)
@pytest.mark.parametrize("others", [0, 3])
def test_a_job_is_never_due_before_now(store, when, others):
    jobs = running(store, 1 + others)
    start = database_now()
    store.attempts.reschedule([failed_try(job, **when) for job in jobs])
    for job in jobs:
        assert start <= stored(job).run_at <= database_now()
    assert len(claim(store)) == len(jobs)


@pytest.mark.parametrize("seconds", [0.000_05, 1e-7])
def test_a_tiny_delay_is_accepted(store, seconds):
    job = running_job(store)
    assert store.attempts.reschedule([failed_try(job, delay_seconds=seconds)]) == {job.key: "pending"}
    assert stored(job).run_at <= database_now() + timedelta(milliseconds=1)


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


# Attempts that are handed back


@pytest.mark.parametrize("count", [1, 3])
def test_hand_back_reduces_the_attempts_and_changes_nothing_else(store, count):
    jobs = running(store, count)
    before = {job.id: row(job) for job in jobs}
    assert store.attempts.hand_back([job.key for job in jobs]) == {job.key for job in jobs}
    for job in jobs:
        changed = {name: value for name, value in row(job).items() if value != before[job.id][name]}
        assert changed == {"status": "pending", "attempt": 0, "leased_by": None, "leased_until": None}


def test_a_job_that_was_handed_back_keeps_its_place(store):
    first, second = create(store, 2)
    store.attempts.hand_back([job.key for job in claim(store, 1)])
    assert [job.id for job in claim(store)] == [first, second]


def test_hand_back_keeps_the_last_error_and_the_history(store):
    job = running_job(store)
    store.attempts.reschedule([failed_try(job)])
    [job] = claim(store)
    store.attempts.hand_back([job.key])
    assert (stored(job).last_error, stored(job).attempt) == ("Boom: no", 1)
    assert FailedAttempt.objects.count() == 1


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


@pytest.mark.parametrize("move", ["reschedule", "fail"])
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
    assert len(history()) == (end in (ENDS["reschedule"], ENDS["fail"]))
    assert claim(store) == []


# Locks and transactions


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
def test_reading_the_state_does_not_wait_and_returns_the_committed_state(store):
    job = running_job(store)
    writing = holding(lambda store: store.attempts.finish([finished(job)]))
    assert store.jobs.state_of(job.id) == ("running", job.lease_number)
    writing.result()
    assert store.jobs.state_of(job.id) == ("completed", job.lease_number)


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
