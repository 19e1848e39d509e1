"""``delete(…, cascade=True)`` follows the blockers, and the blockers of these, of continuations too."""

from collections.abc import Callable

import pytest
from asgiref.sync import async_to_sync

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainReferenced
from django_jobchains.models import Job, JobBlocker
from tests.interventions.chains_at import each, everything, go_on, mail, ship

pytestmark = pytest.mark.django_db


def waiting_for(*blockers: Chain) -> Chain:
    return ship.enqueue(blockers=blockers)


def finish(chain: Chain) -> None:
    with chains.complete(chain.id) as current:
        current.finish()


def test_the_blockers_of_its_jobs_go_too() -> None:
    blockers = [mail.enqueue(), mail.enqueue()]
    chain = waiting_for(*blockers)
    assert chains.delete(chain, cascade=True) == each([chain, *blockers])
    assert not Job.objects.exists()
    assert not JobBlocker.objects.exists()


def test_the_blockers_of_blockers_go_too() -> None:
    first = mail.enqueue()
    second = waiting_for(first)
    third = waiting_for(second)
    last = waiting_for(third)
    assert chains.delete(last, cascade=True) == each([first, second, third, last])


def test_the_blockers_of_continuations_go_too() -> None:
    blocker, deep = mail.enqueue(), mail.enqueue()
    go_on(blocker, blockers=[deep])
    chain = ship.enqueue()
    go_on(chain)
    go_on(chain, blockers=[blocker])
    assert chains.delete(chain, cascade=True) == each([chain, blocker, deep])
    assert not Job.objects.exists()


def test_blockers_that_completed_long_ago_go_too() -> None:
    blocker = mail.enqueue()
    chain = waiting_for(blocker)
    finish(blocker)
    finish(chain)
    assert chains.delete(chain, cascade=True) == each([chain, blocker])


def test_a_blocker_by_two_ways_goes_once() -> None:
    bottom = mail.enqueue()
    left, right = waiting_for(bottom), waiting_for(bottom)
    top = waiting_for(left, right)
    assert chains.delete([top, left], cascade=True) == each([bottom, left, right, top])


def test_what_waits_for_it_does_not_go_along_but_holds_it() -> None:
    blocker = mail.enqueue()
    chain = waiting_for(blocker)
    with pytest.raises(ChainReferenced) as caught:
        chains.delete(blocker, cascade=True)
    assert caught.value.references == ((blocker.id, chain.id),)


def test_a_blocker_that_somebody_outside_needs_holds_all_of_them() -> None:
    shared, own = mail.enqueue(), mail.enqueue()
    chain, outsider = waiting_for(shared, own), waiting_for(shared)
    before = everything()
    with pytest.raises(ChainReferenced) as caught:
        chains.delete(chain, cascade=True)
    assert caught.value.references == ((shared.id, outsider.id),)
    assert everything() == before
    assert chains.delete([chain, outsider], cascade=True) == each([chain, outsider, shared, own])


def test_a_blocker_of_a_blocker_that_somebody_outside_needs_holds_all_of_them() -> None:
    deep = mail.enqueue()
    middle = waiting_for(deep)
    chain, outsider = waiting_for(middle), ship.enqueue()
    go_on(outsider, blockers=[deep])
    before = everything()
    with pytest.raises(ChainReferenced) as caught:
        chains.delete(chain, cascade=True)
    assert caught.value.references == ((deep.id, outsider.refresh().current_job_id),)
    assert everything() == before


def test_a_blocker_that_a_completed_job_outside_needed_goes() -> None:
    shared = mail.enqueue()
    chain, outsider = waiting_for(shared), waiting_for(shared)
    finish(shared)
    finish(outsider)
    assert chains.delete(chain, cascade=True) == each([chain, shared])
    assert outsider.refresh().status == "completed"


def test_without_it_blockers_stay() -> None:
    blocker = mail.enqueue()
    chain = waiting_for(blocker)
    assert chains.delete(chain) == {chain.id}
    assert blocker.refresh().status == "pending"


@pytest.mark.parametrize("delete", [chains.delete, async_to_sync(chains.adelete)], ids=["sync", "async"])
def test_a_second_chain_is_never_taken_for_cascade(delete: Callable[..., object]) -> None:
    first, second = ship.enqueue(), ship.enqueue()
    with pytest.raises(TypeError, match="positional argument"):
        delete(first, second)
    for wrong in (second, 1, 0, "no", None):
        with pytest.raises(ValueError, match=r"cascade=.* is not one of True, False"):
            delete(first, cascade=wrong)
    assert {first.refresh().status, second.refresh().status} == {"pending"}
