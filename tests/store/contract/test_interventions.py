"""Interventions by people apply only to jobs with a suitable status, and to all given jobs or none."""

import json
from datetime import UTC, datetime

import pytest
from django.db import transaction

from django_jobchains.db.ids import new_id
from django_jobchains.exceptions import (
    ChainNotFound,
    ChainReferenced,
    JobAlreadyCompleted,
    JobNotFound,
    JobNotRunnable,
)
from django_jobchains.models import Job
from django_jobchains.store.rows import ChainEnd, Effects
from tests.support.connections import committing, in_turn
from tests.support.jobs import (
    MAIL,
    SHIP,
    claim,
    create,
    failed_try,
    finished,
    lease,
    next_job,
    row,
    running,
    running_job,
    statuses,
    stored,
    tables,
)

pytestmark = pytest.mark.django_db

STATES = ("blocked", "pending", "running", "completed", "failed", "cancelled")
FAR = datetime(2051, 3, 4, 5, 6, 7, 123456, tzinfo=UTC)


def in_state(store, status):
    """Create a chain of one job with this status."""
    if status == "blocked":
        return create(store, blockers=tuple(create(store, 1, MAIL, delay_seconds=3600)))[0]
    if status == "pending":
        return create(store, delay_seconds=60)[0]
    job = running_job(store)
    if status == "completed":
        store.attempts.finish([finished(job)])
    if status in ("failed", "cancelled"):
        store.attempts.fail([failed_try(job)]) if status == "failed" else store.attempts.hand_back([job.key])
    if status == "cancelled":
        store.chains.cancel([job.chain_id], Effects())
    assert statuses(job) == [status]
    return job.id


def complete(store, chain_id, effects=None, output='"by hand"', continuation=None):
    with store.db.transaction():
        last_job = store.last_jobs.lock([chain_id])[chain_id]
        store.chains.complete(last_job, output, continuation, effects or Effects())


def long_chain(store):
    """Create a chain with two completed jobs and a scheduled one, and return the ids of its jobs."""
    ids = create(store, delay_seconds=3600)
    for _ in range(2):
        step = next_job(stored(ids[-1]), delay_seconds=3600)
        complete(store, ids[0], output=None, continuation=step)
        ids.append(step.id)
    return ids


@pytest.mark.parametrize("status", ["blocked", "pending", "running"])
def test_a_job_that_has_not_ended_is_completed(store, status):
    chain_id, effects = in_state(store, status), Effects()
    complete(store, chain_id, effects)
    saved = stored(chain_id)
    assert (saved.status, saved.output, saved.completed_by) == ("completed", "by hand", None)
    assert (saved.leased_by, saved.leased_until) == (None, None)
    assert effects.finished_chains == {chain_id}
    assert effects.stopped_jobs == ({chain_id} if status == "running" else set())


def test_a_lease_is_lost_to_a_person_but_not_to_the_attempt_itself(store):
    own, by_hand = running(store, 2)
    store.attempts.finish([finished(own)])
    complete(store, by_hand.id)
    leases = [lease(job) for job in (own, by_hand)]
    reasons = dict.fromkeys([own.key, by_hand.key], "already_completed")
    for renewal in (store.leases.check(list(reasons)), store.leases.renew(leases)):
        assert (renewal.lost, renewal.completed) == (reasons, {own.key})


def test_a_chain_that_is_completed_by_hand_continues(store):
    job, effects = running_job(store), Effects()
    step = next_job(job)
    complete(store, job.chain_id, effects, output=None, continuation=step)
    assert statuses(job, step.id) == ["completed", "pending"]
    assert effects.finished_chains == set()
    assert store.last_jobs.lock([job.chain_id])[job.chain_id].job_id == step.id
    assert store.attempts.finish([finished(job)]) == set()


def test_the_last_job_of_a_chain_is_returned_as_it_is_stored(store):
    job = running_job(store, context='{"tenant": 7}', deduplication_key="k", priority=3)
    with store.db.transaction():
        last_jobs = store.last_jobs.lock([job.chain_id, new_id()])
    assert last_jobs == store.last_jobs.read([job.chain_id])
    found = last_jobs[job.chain_id]._asdict()
    assert (found.pop("job_id"), json.loads(found.pop("context"))) == (job.id, {"tenant": 7})
    assert found == {name: row(job)[name] for name in found}


def test_chains_that_did_not_start_are_cancelled_and_others_asked_to_stop(store):
    ids, effects = {status: in_state(store, status) for status in STATES}, Effects()
    changed = {ids[status] for status in ("blocked", "pending", "running")}
    assert store.chains.cancel(ids.values(), effects) == changed
    assert statuses(*ids.values()) == ["cancelled", "cancelled", "running", "completed", "failed", "cancelled"]
    assert stored(ids["running"]).cancel_requested_at is not None
    assert effects.stopped_jobs == {ids["running"]}
    assert effects.finished_chains == {ids["blocked"], ids["pending"]}


def test_jobs_that_failed_or_were_cancelled_are_retried(store):
    ids, effects = {status: in_state(store, status) for status in STATES}, Effects()
    assert store.chains.retry(ids.values(), effects) == {ids["failed"], ids["cancelled"]}
    assert statuses(*ids.values()) == ["blocked", "pending", "running", "completed", "pending", "pending"]
    saved = stored(ids["failed"])
    assert (saved.finished_at, saved.cancel_requested_at) == (None, None)
    assert effects.due_types == {SHIP}
    assert {job.id for job in claim(store)} == {ids["failed"], ids["cancelled"]}


def test_pending_jobs_are_moved_to_a_time_or_to_now(store):
    ids, effects = create(store, 2, delay_seconds=60), Effects()
    store.chains.move(ids, FAR, 0, effects)
    assert [stored(job_id).run_at for job_id in ids] == [FAR, FAR]
    assert effects.due_types == {SHIP}
    store.chains.move(ids, None, 0, effects)
    assert [job.id for job in claim(store)] == ids


def test_the_id_of_a_chain_stands_for_its_last_job(store):
    chain_id, *_, last_id = ids = long_chain(store)
    store.chains.move([chain_id], FAR, 0, Effects())
    assert [stored(job_id).run_at == FAR for job_id in ids] == [False, False, True]
    store.chains.cancel([chain_id], Effects())
    assert store.chains.retry([chain_id, last_id], Effects()) == {last_id}


def test_the_id_of_a_later_job_stands_for_that_job(store):
    ids = long_chain(store)
    assert store.chains.retry([ids[1]], Effects()) == set()
    with pytest.raises(JobNotRunnable), transaction.atomic():
        store.chains.move([ids[1]], FAR, 0, Effects())
    store.chains.move([ids[2]], FAR, 0, Effects())
    assert stored(ids[2]).run_at == FAR


def test_the_id_of_a_later_job_stands_for_its_chain_where_chains_are_expected(store):
    ids = chain_id, later_id, last_id = long_chain(store)
    with store.db.transaction():
        assert store.last_jobs.lock_chain_of(later_id).job_id == last_id
    types = {"type_name": stored(last_id).type_name, "chain_type_name": stored(chain_id).type_name}
    assert store.chains.ends(ids) == dict.fromkeys(ids, ChainEnd(chain_id, "pending", **types))
    assert store.chains.cancel([later_id], Effects()) == {chain_id}
    assert store.chains.ends(ids) == dict.fromkeys(ids, ChainEnd(chain_id, "cancelled", **types))
    assert store.chains.delete([later_id], cascade=False, effects=Effects()) == {chain_id}
    assert store.chains.ends([later_id]) == {later_id: ChainEnd(later_id, None)}
    with pytest.raises(ChainNotFound), store.db.transaction():
        store.last_jobs.lock_chain_of(later_id)


@committing
@pytest.mark.parametrize("moved_first", [True, False])
def test_a_chain_that_continues_meanwhile_is_moved_at_its_last_job(store, moved_first):
    (chain_id,) = create(store, delay_seconds=3600)
    step = next_job(stored(chain_id), delay_seconds=3600)
    calls = [
        lambda store: store.chains.move([chain_id], FAR, 0, Effects()),
        lambda store: complete(store, chain_id, output=None, continuation=step),
    ]
    in_turn(*calls[:: 1 if moved_first else -1])
    assert (stored(step.id).run_at == FAR) is not moved_first


def test_no_job_is_moved_if_one_is_not_pending(store):
    ids = [in_state(store, status) for status in ("pending", "running")]
    before = tables()
    with pytest.raises(JobNotRunnable), transaction.atomic():
        store.chains.move(ids, FAR, 0, Effects())
    assert tables() == before


def test_nothing_is_changed_if_one_id_is_unknown(store):
    known, effects = in_state(store, "failed"), Effects()
    ids = [known, new_id()]
    before = tables()
    for call, error in (
        (lambda: store.chains.cancel(ids, effects), ChainNotFound),
        (lambda: store.chains.retry(ids, effects), JobNotFound),
        (lambda: store.chains.move(ids, FAR, 0, effects), JobNotFound),
        (lambda: store.chains.delete(ids, cascade=False, effects=effects), ChainNotFound),
    ):
        with pytest.raises(error, match=str(ids[1])), transaction.atomic():
            call()
    assert tables() == before
    assert effects == Effects()


def test_a_chain_is_deleted_with_all_its_rows_and_nothing_else(store):
    kept, effects = running_job(store), Effects()
    store.attempts.fail([failed_try(kept)])
    create(store, 1, MAIL, blockers=(kept.chain_id,))
    before = tables()
    job = running_job(store)
    store.attempts.reschedule([failed_try(job)])
    (job,) = claim(store)
    store.attempts.finish([finished(job, None, next_job(job, blockers=(kept.chain_id,)))])
    assert store.chains.delete([job.chain_id], cascade=False, effects=effects) == {job.chain_id}
    assert tables() == before
    assert effects.finished_chains == {job.chain_id}


def test_a_chain_that_a_job_needs_is_not_deleted(store):
    blocker = running_job(store)
    (waits,) = create(store, 1, MAIL, blockers=(blocker.chain_id,))
    with pytest.raises(ChainReferenced), transaction.atomic():
        store.chains.delete([blocker.chain_id], cascade=False, effects=Effects())
    assert store.chains.delete([waits], cascade=True, effects=Effects()) == {waits, blocker.chain_id}
    assert not Job.objects.exists()


@committing
@pytest.mark.parametrize("by_hand_first", [True, False])
def test_a_job_is_completed_by_hand_or_by_its_attempt(store, by_hand_first):
    job = running_job(store)

    def by_hand(store):
        try:
            complete(store, job.chain_id)
        except JobAlreadyCompleted:
            return False
        return True

    calls = [by_hand, lambda store: bool(store.attempts.finish([finished(job)]))]
    assert in_turn(*calls[:: 1 if by_hand_first else -1]) == (True, False)
    assert stored(job).output == ("by hand" if by_hand_first else "done")


@committing
@pytest.mark.parametrize("cancelled_first", [True, False])
def test_a_job_is_cancelled_before_its_claim_or_asked_to_stop(store, cancelled_first):
    (job_id,) = create(store)
    calls = [lambda store: store.chains.cancel([job_id], Effects()), claim]
    claimed = in_turn(*calls[:: 1 if cancelled_first else -1])[1 if cancelled_first else 0]
    saved = stored(job_id)
    assert (saved.status, len(claimed)) == (("cancelled", 0) if cancelled_first else ("running", 1))
    assert saved.cancel_requested_at is not None
