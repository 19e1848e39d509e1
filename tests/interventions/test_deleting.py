"""``delete``: all given chains are deleted with tables that belongs to them, or none is.

With ``cascade=True``, the blockers of all jobs of the chains are deleted too, and their blockers in turn.
"""

from uuid import UUID

import pytest
from asgiref.sync import async_to_sync

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainReferenced
from django_jobchains.models import Job, JobBlocker
from tests.support.chains import STATES, attempt, each, go_on, mail, ship
from tests.support.jobs import claim, failed_try, finished, tables

pytestmark = pytest.mark.django_db


def waiting_for(*blockers):
    return ship.enqueue(blockers=blockers)


def dependent_of(blocker, status, store):
    """Return a chain with this status that waited for the blocker."""
    dependent = waiting_for(blocker)
    if status == "cancelled":
        chains.cancel(dependent)
    elif status != "blocked":
        chains.complete(blocker)
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
    before = tables()
    with pytest.raises(ChainReferenced, match=f"^Uncompleted jobs .*: {dependent.id} needs {blocker.id}") as caught:
        chains.delete([other, blocker], cascade=cascade)
    assert caught.value.references == ((blocker.id, dependent.id),)
    assert tables() == before
    assert chains.delete([blocker, dependent]) == each([blocker, dependent])


def test_a_completed_dependent_does_not_prevent_the_deletion():
    blocker = mail.enqueue()
    done, continued = waiting_for(blocker), waiting_for(blocker)
    chains.complete(blocker)
    chains.complete(done)
    go_on(continued)
    before = done.refresh().current_job
    assert chains.delete(blocker) == {blocker.id}
    assert done.refresh().current_job == before
    assert continued.refresh().status == "pending"
    assert not JobBlocker.objects.exists()


def test_chains_that_need_only_each_other_are_deleted_together():
    first = mail.enqueue()
    second = mail.enqueue(blockers=[first])
    third = waiting_for(first, second)
    for part in ([first], [second], [first, second]):
        with pytest.raises(ChainReferenced):
            chains.delete(part)
    assert chains.delete([first, second, third]) == each([first, second, third])


def test_an_error_names_only_some_of_many_references():
    blocker = mail.enqueue()
    dependents = [waiting_for(blocker) for _ in range(20)]
    with pytest.raises(ChainReferenced) as caught:
        chains.delete(blocker)
    assert 1 <= len(caught.value.references) < 10
    assert {job_id for _, job_id in caught.value.references} <= each(dependents)


def test_without_cascade_blockers_are_kept(store):
    blockers = [make(store) for make in STATES.values()]
    chains.delete(waiting_for(*blockers))
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


def test_a_cascade_deletes_the_blockers_of_all_steps_and_their_blockers():
    early, blocker, deep = mail.enqueue(), mail.enqueue(), mail.enqueue()
    go_on(blocker, blockers=[deep])
    chain = waiting_for(early)
    go_on(chain)
    go_on(chain, blockers=[blocker])
    assert chains.delete(chain, cascade=True) == each([chain, early, blocker, deep])
    assert not Job.objects.exists()
    assert not JobBlocker.objects.exists()


def test_a_cascade_deletes_a_shared_blocker_once():
    bottom = mail.enqueue()
    left, right = waiting_for(bottom), waiting_for(bottom)
    top = waiting_for(left, right)
    assert chains.delete([top, left], cascade=True) == each([bottom, left, right, top])


@pytest.mark.parametrize("is_distant", [False, True])
def test_a_blocker_needed_by_another_chain_prevents_the_cascade(is_distant):
    shared, own = mail.enqueue(), mail.enqueue()
    chain = waiting_for(waiting_for(shared) if is_distant else shared, own)
    outsider = ship.enqueue()
    go_on(outsider, blockers=[shared])
    before = tables()
    with pytest.raises(ChainReferenced) as caught:
        chains.delete(chain, cascade=True)
    assert caught.value.references == ((shared.id, outsider.refresh().current_job_id),)
    assert tables() == before
    assert chains.delete([chain, outsider], cascade=True) >= each([chain, outsider, shared, own])
    assert not Job.objects.exists()


def test_a_cascade_deletes_a_blocker_of_a_completed_job():
    shared = mail.enqueue()
    chain, outsider = waiting_for(shared), waiting_for(shared)
    chains.complete(shared)
    chains.complete(outsider)
    assert chains.delete(chain, cascade=True) == each([chain, shared])
    assert outsider.refresh().status == "completed"


@pytest.mark.parametrize("delete", [chains.delete, async_to_sync(chains.adelete)])
def test_ids_and_cascade_can_be_passed_by_name_or_position(delete):
    blocker = mail.enqueue()
    chain = waiting_for(blocker)
    chains.complete(blocker)
    assert delete(ids=chain, cascade=False) == {chain.id}
    chain = waiting_for(blocker)
    assert delete(chain, True) == each([chain, blocker])


def test_cascade_accepts_only_a_bool():
    first, second = ship.enqueue(), ship.enqueue()
    for wrong in (second, 1, 0, "no", None):
        with pytest.raises(ValueError, match=r"cascade=.* is not one of True, False"):
            chains.delete(first, wrong)
    assert {first.refresh().status, second.refresh().status} == {"pending"}
