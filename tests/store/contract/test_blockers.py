"""Fan-in: a job that waits for chains starts once, when all of them have ended."""

from uuid import UUID

import pytest
from django.db import transaction

from django_jobchains.db.ids import new_id
from django_jobchains.exceptions import ChainNotFound, InvalidBlockers
from django_jobchains.models import JobBlocker
from django_jobchains.store.blockers import BLOCKER_FAILED
from django_jobchains.store.rows import Effects
from tests.support.connections import committing, in_turn
from tests.support.jobs import (
    MAIL,
    SHIP,
    claim,
    create,
    failed_try,
    finished,
    new_job,
    next_job,
    running,
    running_job,
    statuses,
    stored,
)

pytestmark = pytest.mark.django_db

BOTH_ORDERS = pytest.mark.parametrize("turned", [False, True], ids=["first", "second"])


def waiting_for(store, *blockers, **changes):
    (job_id,) = create(store, 1, MAIL, blockers=tuple(job.chain_id for job in blockers), **changes)
    return job_id


def test_a_job_waits_for_its_blockers_and_starts_when_the_last_has_ended(store):
    first, second = running(store, 2)
    job_id, effects = waiting_for(store, first, second), Effects()
    assert statuses(job_id) == ["blocked"]
    store.attempts.finish([finished(first)])
    assert (statuses(job_id), claim(store)) == (["blocked"], [])
    store.attempts.finish([finished(second)], effects)
    assert effects.due_counts == {MAIL: 1}
    assert effects.finished_chains == {second.chain_id}
    assert stored(job_id).run_at >= stored(second).finished_at  # It waits its turn from now on.
    assert [job.id for job in claim(store)] == [job_id]


def test_a_waiting_job_keeps_its_future_date(store):
    blocker = running_job(store)
    job_id = waiting_for(store, blocker, delay_seconds=600)
    run_at = stored(job_id).run_at
    store.attempts.finish([finished(blocker)])
    saved = stored(job_id)
    assert (saved.status, saved.run_at) == ("pending", run_at)


def test_a_continuation_waits_for_its_blockers(store):
    job, blocker = running(store, 2)
    step = next_job(job, blockers=(blocker.chain_id,))
    store.attempts.finish([finished(job, None, step)])
    assert statuses(step.id) == ["blocked"]
    store.attempts.finish([finished(blocker)])
    assert statuses(step.id) == ["pending"]


@pytest.mark.parametrize("ends", ["fail", "cancel"])
def test_the_policy_of_a_job_applies_when_a_blocker_fails(store, ends):
    blocker, effects = running_job(store), Effects()
    waits, fails, runs = (waiting_for(store, blocker, on_blocker_failure=what) for what in ("wait", "fail", "run"))
    (behind,) = create(store, blockers=(fails,), on_blocker_failure="fail")
    if ends == "cancel":
        store.chains.cancel([blocker.chain_id], Effects())
    store.attempts.fail([failed_try(blocker)], effects)
    assert statuses(waits, fails, runs, behind) == ["blocked", "failed", "pending", "failed"]
    assert effects.finished_chains == {blocker.chain_id, fails, behind}
    assert (stored(fails).last_error, stored(fails).attempt) == (BLOCKER_FAILED, 0)
    assert stored(fails).finished_at is not None
    links = JobBlocker.objects.filter(blocker_id=blocker.chain_id)
    assert set(links.values_list("job_id", "is_open")) == {(waits, True), (fails, True), (runs, False)}
    failed = [(job.job_id, job.chain_id, job.type_name) for job in effects.failed_waiters.values()]
    assert failed == [(fails, fails, MAIL), (behind, behind, SHIP)]


def test_invalid_blockers_are_refused_and_nothing_is_created(store):
    blocker = running_job(store)
    known, unknown, itself = blocker.chain_id, new_id(), new_id()
    refused = [
        (ChainNotFound, {"blockers": (known, unknown)}),
        (InvalidBlockers, {"blockers": (known, known)}),
        (InvalidBlockers, {"id": itself, "blockers": (itself,)}),
        (InvalidBlockers, {"blockers": (known,), "accepted_blockers": frozenset({MAIL})}),
        (InvalidBlockers, {"blockers": (known,), "blocker_slots": (MAIL,)}),
    ]
    for error, values in refused:
        with pytest.raises(error), transaction.atomic():
            store.jobs.create([new_job(), new_job(**values)])
    assert claim(store) == []
    accepted = new_job(blockers=(known,), accepted_blockers=frozenset({SHIP, MAIL}))
    assert len(store.jobs.create([accepted])) == 1
    assert len(store.jobs.create([new_job(blockers=(known,), blocker_slots=(SHIP,))])) == 1


def test_chains_cannot_wait_for_each_other(store):
    first, second = running(store, 2)
    store.attempts.finish([finished(first, None, next_job(first, blockers=(second.chain_id,)))])
    circle = next_job(second, blockers=(first.chain_id,))
    with pytest.raises(InvalidBlockers), transaction.atomic():
        store.attempts.finish([finished(second, None, circle)])
    assert statuses(second) == ["running"]


def test_the_sweeper_frees_only_jobs_that_wait_for_nothing(store):
    """A correct store leaves no such job, so the test creates one."""
    done, open_ = running(store, 2)
    stuck, waits = waiting_for(store, open_), waiting_for(store, open_)
    store.attempts.finish([finished(done)])
    assert store.blockers.sweep(10, None, Effects()) == ([], None)
    JobBlocker.objects.filter(job_id=stuck).update(blocker=done.chain_id)
    assert store.blockers.sweep(10, None, Effects()) == ([stuck], None)
    assert statuses(stuck, waits) == ["pending", "blocked"]


@committing
@BOTH_ORDERS
def test_the_last_two_blockers_that_end_at_once_free_the_job(store, turned):
    """Each transaction sees the other's end, because it locks the waiting job before it checks the blockers."""
    first, second = running(store, 2)[:: -1 if turned else 1]
    job_id = waiting_for(store, *sorted((first, second)))
    ends = [lambda store, job=job: store.attempts.finish([finished(job)]) for job in (first, second)]
    assert in_turn(*ends) == ({first.key}, {second.key})
    assert statuses(job_id) == ["pending"], "Neither transaction saw the other's end, so the job is stuck."


@committing
@BOTH_ORDERS
@pytest.mark.parametrize("continues", [False, True])
def test_a_job_that_is_created_while_its_blocker_ends_or_continues_waits_for_the_end(store, turned, continues):
    blocker = running_job(store)
    step = next_job(blocker) if continues else None

    def end(store):
        return store.attempts.finish([finished(blocker, None, step)])

    calls = [end, lambda store: waiting_for(store, blocker)]
    results = in_turn(*calls[:: -1 if turned else 1])
    (job_id,) = (result for result in results if isinstance(result, UUID))
    end(store)  # Once more, because it may have skipped the locked blocker.
    assert statuses(job_id) == ["blocked" if continues else "pending"]
    store.attempts.finish([finished(last) for last in claim(store, types=[MAIL]) if last.id != job_id])
    assert statuses(job_id) == ["pending" if continues else "running"]
