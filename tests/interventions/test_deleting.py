"""``delete``: chains go with all that is theirs, all of them or none, and no chain that somebody else needs."""

from uuid import UUID

import pytest

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainNotFound, ChainReferenced
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.store import Store
from tests.interventions.chains_at import (
    STATES,
    attempt,
    each,
    everything,
    failed,
    go_on,
    mail,
    pending,
    running,
    ship,
)
from tests.store.jobs import claim, failed_try, finished, lease, next_job

pytestmark = pytest.mark.django_db


def finish(chain: Chain) -> None:
    with chains.complete(chain.id) as current:
        current.finish("output")


def test_its_jobs_links_and_history_are_gone_and_nothing_else(store: Store) -> None:
    kept = failed(store)
    ship.enqueue(blockers=[mail.enqueue()])
    before = everything()
    chain = ship.enqueue()
    store.reschedule([failed_try(attempt(store, chain))])
    go_on(chain, blockers=[kept])
    go_on(chain)
    store.fail([failed_try(attempt(store, chain))])
    assert chains.delete(chain) == {chain.id}
    assert everything() == before
    with pytest.raises(ChainNotFound):
        chain.refresh()


def test_it_returns_what_it_deleted_and_an_unknown_chain_keeps_the_others(store: Store) -> None:
    made = [pending(store), failed(store), running(store)]
    gone = pending(store)
    chains.delete(gone)
    before = everything()
    with pytest.raises(ChainNotFound, match=str(gone.id)):
        chains.delete([*made, gone])
    assert everything() == before
    assert chains.delete(made) == each(made)
    assert not Job.objects.exists()


def dependent_of(blocker: Chain, status: str, store: Store) -> Chain:
    """A chain of a status that waited for the blocker."""
    dependent = ship.enqueue(blockers=[blocker])
    if status == "cancelled":
        chains.cancel(dependent)
    elif status != "blocked":
        finish(blocker)
    if status in ("running", "failed"):
        job = attempt(store, dependent)
        if status == "failed":
            store.fail([failed_try(job)])
    return dependent.refresh()


@pytest.mark.parametrize("status", ["blocked", "pending", "running", "failed", "cancelled"])
@pytest.mark.parametrize("cascade", [False, True])
def test_a_chain_that_a_job_outside_needs_is_not_deleted(store: Store, status: str, cascade: bool) -> None:
    blocker, other = mail.enqueue(), mail.enqueue()
    dependent = dependent_of(blocker, status, store)
    assert dependent.status == status
    before = everything()
    with pytest.raises(ChainReferenced, match=f"{blocker.id} by job {dependent.id}") as caught:
        chains.delete([other, blocker], cascade=cascade)
    assert caught.value.references == ((blocker.id, dependent.id),)
    assert everything() == before
    assert chains.delete([blocker, dependent]) == each([blocker, dependent])


def test_a_continuation_that_waits_for_it_holds_it_and_is_named(store: Store) -> None:
    blocker, dependent = mail.enqueue(), ship.enqueue()
    go_on(dependent, blockers=[blocker])
    with pytest.raises(ChainReferenced) as caught:
        chains.delete(blocker)
    assert caught.value.references == ((blocker.id, dependent.refresh().current_job_id),)


def test_a_completed_dependent_does_not_hold_it(store: Store) -> None:
    blocker = mail.enqueue()
    dependent = ship.enqueue(blockers=[blocker])
    finish(blocker)
    finish(dependent)
    before = dependent.refresh().current_job
    chains.delete(blocker)
    assert dependent.refresh().current_job == before
    assert not JobBlocker.objects.exists()


def test_a_chain_that_went_on_after_its_blocker_does_not_hold_it(store: Store) -> None:
    blocker = mail.enqueue()
    dependent = ship.enqueue(blockers=[blocker])
    finish(blocker)
    go_on(dependent)
    assert chains.delete(blocker) == {blocker.id}
    assert dependent.refresh().status == "pending"


def test_chains_that_need_only_each_other_are_deleted_together(store: Store) -> None:
    first = mail.enqueue()
    second = mail.enqueue(blockers=[first])
    third = ship.enqueue(blockers=[first, second])
    for part in ([first], [second], [first, second]):
        with pytest.raises(ChainReferenced):
            chains.delete(part)
    assert chains.delete([first, second, third]) == each([first, second, third])


def test_of_many_references_a_few_are_named(store: Store) -> None:
    blocker = mail.enqueue()
    dependents = [ship.enqueue(blockers=[blocker]) for _ in range(20)]
    with pytest.raises(ChainReferenced) as caught:
        chains.delete(blocker)
    assert 1 <= len(caught.value.references) < 10
    assert {job_id for _, job_id in caught.value.references} <= each(dependents)


@pytest.mark.parametrize("state", STATES)
def test_without_cascade_its_blockers_stay(store: Store, state: str) -> None:
    blocker = STATES[state](store)
    dependent = ship.enqueue(blockers=[blocker])
    chains.delete(dependent)
    assert blocker.refresh().id == blocker.id
    assert not JobBlocker.objects.filter(blocker_id=blocker.id).exists()


class TestARunningJob:
    def test_its_attempt_is_told_and_writes_nothing(self, store: Store) -> None:
        chain = ship.enqueue()
        job = attempt(store, chain)
        chains.delete(chain)
        assert store.renew([lease(job)]).lost == {job.key: "not_found"}
        assert store.finish([finished(job, None, next_job(job))]) == set()
        assert store.reschedule([failed_try(job)]) == store.fail([failed_try(job)]) == {}
        assert store.hand_back([lease(job)]) == set()
        assert store.lock(job.id) is None
        assert not Job.objects.exists()
        assert not FailedAttempt.objects.exists()

    def test_a_chain_of_the_same_id_is_another(self, store: Store) -> None:
        chain = ship.enqueue("old", id=UUID(int=7))
        stale = attempt(store, chain)
        chains.delete(chain)
        ship.enqueue("new", id=UUID(int=7))
        [fresh] = claim(store)
        assert fresh.input == '"new"'
        assert store.finish([finished(stale)]) == set()
        assert store.finish([finished(fresh)]) == {fresh.key}
