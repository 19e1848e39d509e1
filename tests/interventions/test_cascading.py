"""``delete(…, cascade=True)`` also deletes the blockers of all jobs of the chains, and their blockers in turn."""

import pytest
from asgiref.sync import async_to_sync

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainReferenced
from django_jobchains.models import Job, JobBlocker
from tests.support.chains import each, everything, go_on, mail, ship

pytestmark = pytest.mark.django_db


def waiting_for(*blockers: Chain) -> Chain:
    return ship.enqueue(blockers=blockers)


def finish(chain: Chain) -> None:
    chains.complete(chain.id)


def test_blockers_are_deleted():
    blockers = [mail.enqueue(), mail.enqueue()]
    chain = waiting_for(*blockers)
    assert chains.delete(chain, cascade=True) == each([chain, *blockers])
    assert not Job.objects.exists()
    assert not JobBlocker.objects.exists()


def test_blockers_of_continuations_are_deleted():
    blocker, deep = mail.enqueue(), mail.enqueue()
    go_on(blocker, blockers=[deep])
    chain = ship.enqueue()
    go_on(chain)
    go_on(chain, blockers=[blocker])
    assert chains.delete(chain, cascade=True) == each([chain, blocker, deep])
    assert not Job.objects.exists()


def test_a_shared_blocker_is_deleted_once():
    bottom = mail.enqueue()
    left, right = waiting_for(bottom), waiting_for(bottom)
    top = waiting_for(left, right)
    assert chains.delete([top, left], cascade=True) == each([bottom, left, right, top])


def test_a_blocker_needed_by_another_chain_prevents_the_deletion_of_all():
    shared, own = mail.enqueue(), mail.enqueue()
    chain, outsider = waiting_for(shared, own), waiting_for(shared)
    before = everything()
    with pytest.raises(ChainReferenced) as caught:
        chains.delete(chain, cascade=True)
    assert caught.value.references == ((shared.id, outsider.id),)
    assert everything() == before
    assert chains.delete([chain, outsider], cascade=True) == each([chain, outsider, shared, own])


def test_a_distant_blocker_needed_by_another_chain_prevents_the_deletion_of_all():
    deep = mail.enqueue()
    middle = waiting_for(deep)
    chain, outsider = waiting_for(middle), ship.enqueue()
    go_on(outsider, blockers=[deep])
    before = everything()
    with pytest.raises(ChainReferenced) as caught:
        chains.delete(chain, cascade=True)
    assert caught.value.references == ((deep.id, outsider.refresh().current_job_id),)
    assert everything() == before


def test_a_blocker_of_a_completed_job_is_deleted():
    shared = mail.enqueue()
    chain, outsider = waiting_for(shared), waiting_for(shared)
    finish(shared)
    finish(outsider)
    assert chains.delete(chain, cascade=True) == each([chain, shared])
    assert outsider.refresh().status == "completed"


@pytest.mark.parametrize("delete", [chains.delete, async_to_sync(chains.adelete)], ids=["sync", "async"])
def test_cascade_accepts_only_a_keyword_and_a_boolean(delete):
    first, second = ship.enqueue(), ship.enqueue()
    with pytest.raises(TypeError, match="positional argument"):
        delete(first, second)
    for wrong in (second, 1, 0, "no", None):
        with pytest.raises(ValueError, match=r"cascade=.* is not one of True, False"):
            delete(first, cascade=wrong)
    assert {first.refresh().status, second.refresh().status} == {"pending"}
