"""``delete``: all given chains are deleted with everything that belongs to them, or none is."""

from uuid import UUID

import pytest

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainReferenced
from django_jobchains.models import JobBlocker
from django_jobchains.store import Store
from tests.support.chains import (
    STATES,
    attempt,
    each,
    everything,
    go_on,
    mail,
    ship,
)
from tests.support.jobs import claim, failed_try, finished

pytestmark = pytest.mark.django_db


def finish(chain: Chain) -> None:
    chains.complete(chain.id, "output")


def dependent_of(blocker: Chain, status: str, store: Store) -> Chain:
    """Return a chain with this status that waited for the blocker."""
    dependent = ship.enqueue(blockers=[blocker])
    if status == "cancelled":
        chains.cancel(dependent)
    elif status != "blocked":
        finish(blocker)
    if status in ("running", "failed"):
        job = attempt(store, dependent)
        if status == "failed":
            store.attempts.fail([failed_try(job)])
    return dependent.refresh()


@pytest.mark.parametrize("status", ["blocked", "pending", "running", "failed", "cancelled"])
@pytest.mark.parametrize("cascade", [False, True])
def test_a_chain_needed_by_a_job_is_not_deleted(store, status, cascade):
    blocker, other = mail.enqueue(), mail.enqueue()
    dependent = dependent_of(blocker, status, store)
    assert dependent.status == status
    before = everything()
    with pytest.raises(ChainReferenced, match=f"{blocker.id} by job {dependent.id}") as caught:
        chains.delete([other, blocker], cascade=cascade)
    assert caught.value.references == ((blocker.id, dependent.id),)
    assert everything() == before
    assert chains.delete([blocker, dependent]) == each([blocker, dependent])


def test_a_waiting_continuation_prevents_the_deletion_and_is_named(store):
    blocker, dependent = mail.enqueue(), ship.enqueue()
    go_on(dependent, blockers=[blocker])
    with pytest.raises(ChainReferenced) as caught:
        chains.delete(blocker)
    assert caught.value.references == ((blocker.id, dependent.refresh().current_job_id),)


def test_a_completed_dependent_does_not_prevent_the_deletion(store):
    blocker = mail.enqueue()
    dependent = ship.enqueue(blockers=[blocker])
    finish(blocker)
    finish(dependent)
    before = dependent.refresh().current_job
    chains.delete(blocker)
    assert dependent.refresh().current_job == before
    assert not JobBlocker.objects.exists()


def test_a_chain_that_continued_after_its_blocker_does_not_prevent_the_deletion(store):
    blocker = mail.enqueue()
    dependent = ship.enqueue(blockers=[blocker])
    finish(blocker)
    go_on(dependent)
    assert chains.delete(blocker) == {blocker.id}
    assert dependent.refresh().status == "pending"


def test_chains_that_need_only_each_other_are_deleted_together(store):
    first = mail.enqueue()
    second = mail.enqueue(blockers=[first])
    third = ship.enqueue(blockers=[first, second])
    for part in ([first], [second], [first, second]):
        with pytest.raises(ChainReferenced):
            chains.delete(part)
    assert chains.delete([first, second, third]) == each([first, second, third])


def test_an_error_names_only_some_of_many_references(store):
    blocker = mail.enqueue()
    dependents = [ship.enqueue(blockers=[blocker]) for _ in range(20)]
    with pytest.raises(ChainReferenced) as caught:
        chains.delete(blocker)
    assert 1 <= len(caught.value.references) < 10
    assert {job_id for _, job_id in caught.value.references} <= each(dependents)


def test_without_cascade_blockers_are_kept(store):
    blockers = [make(store) for make in STATES.values()]
    dependent = ship.enqueue(blockers=blockers)
    chains.delete(dependent)
    assert Chain.objects.filter(pk__in=each(blockers)).count() == len(blockers)
    assert not JobBlocker.objects.filter(blocker_id__in=each(blockers)).exists()


def test_an_old_attempt_cannot_finish_a_new_chain_with_the_same_id(store):
    chain = ship.enqueue("old", id=UUID(int=7))
    stale = attempt(store, chain)
    chains.delete(chain)
    ship.enqueue("new", id=UUID(int=7))
    [fresh] = claim(store)
    assert fresh.input == '"new"'
    assert store.attempts.finish([finished(stale)]) == set()
    assert store.attempts.finish([finished(fresh)]) == {fresh.key}
