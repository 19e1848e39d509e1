"""``cancel``: jobs that do not run are cancelled at once, running jobs are asked to stop, ended jobs do not change."""

import pytest

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainCancelled
from django_jobchains.models import Job, JobBlocker
from django_jobchains.store.rows import Effects
from tests.support.chains import attempt, backing_off, blocked, each, mail, pending, running, scheduled, ship, statuses
from tests.support.jobs import claim, database_now, failed_try, finished, next_job

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("make", [pending, scheduled, blocked, backing_off])
def test_a_job_that_is_not_running_is_cancelled_at_once(store, make):
    chain = make(store)
    before = database_now()
    assert chains.cancel(chain) == {chain.id}
    job = chain.refresh().current_job
    assert (chain.status, job.status, job.leased_by) == ("cancelled", "cancelled", None)
    assert before <= job.finished_at <= database_now()
    assert chain.finished_at == job.cancel_requested_at == job.finished_at
    store.db.ahead_seconds = 7_200
    assert chain.id not in {job.chain_id for job in claim(store)}
    with pytest.raises(ChainCancelled):
        chain.result(1)


def test_a_second_cancel_keeps_the_time_of_the_first(store):
    chain = running(store)
    chains.cancel(chain)
    first = chain.refresh().current_job.cancel_requested_at
    assert chains.cancel(chain) == {chain.id}
    assert chain.refresh().current_job.cancel_requested_at == first


def test_in_a_batch_of_attempts_only_those_asked_to_stop_are_cancelled(store):
    made = [ship.enqueue() for _ in range(6)]
    jobs = claim(store)
    chains.cancel(made[::2])
    store.attempts.reschedule([failed_try(job) for job in jobs])
    assert each(Chain.objects.with_status("cancelled")) == each(made[::2])
    assert each(Chain.objects.with_status("pending")) == each(made[1::2])


def test_a_chain_and_its_blocker_can_be_cancelled_together(store):
    blocker = pending(store)
    dependent = mail.enqueue(blockers=[blocker])
    assert chains.cancel(ids=[dependent, blocker]) == each([dependent, blocker])
    assert [blocker.refresh().status, dependent.refresh().status] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("is_retried_first", [True, False])
def test_a_cancelled_continuation_waits_for_its_blockers_only_when_it_is_retried(store, is_retried_first):
    blocker, chain = mail.enqueue(delay=3600), ship.enqueue()
    job = attempt(store, chain)
    chains.cancel(chain)
    effects = Effects()
    store.attempts.finish([finished(job, None, next_job(job, blockers=(blocker.id,)))], effects)
    assert statuses(chain) == ["completed", "cancelled"]
    assert (effects.finished_chains, effects.due_types) == ({chain.id}, set())
    if is_retried_first:
        chains.retry(chain.refresh().current_job_id)
        assert statuses(chain) == ["completed", "blocked"]
        chains.complete(blocker.id)
    else:
        chains.complete(blocker.id)
        assert statuses(chain) == ["completed", "cancelled"]
        assert not JobBlocker.objects.filter(is_open=True).exists()
        chains.retry(chain.refresh().current_job_id)
    assert statuses(chain) == ["completed", "pending"]


def test_a_cancel_request_leaves_the_running_attempt_unchanged(store):
    chain = running(store)
    [before] = Job.objects.filter(chain_id=chain.id).values()
    chains.cancel(chain)
    [after] = Job.objects.filter(chain_id=chain.id).values()
    assert dict(before.items() ^ after.items()).keys() == {"cancel_requested_at"}
