"""Every verb joins the caller's transaction, tells whom it concerns after the commit, and has an async twin."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_jobchains import chains
from django_jobchains.chains import ChainNotFound
from django_jobchains.models import Job
from django_jobchains.store import Store, get_store
from tests.attempts.work import committed
from tests.interventions.chains_at import STATES, attempt, everything, go_on, ship
from tests.interventions.verbs import CANCEL, DELETE, RETRY, VERBS, Verb

pytestmark = committed

verbs = pytest.mark.parametrize("verb", VERBS, ids=str)
Sent = list[tuple[str, set[str]]]


@verbs
def test_outside_a_transaction_it_is_committed_at_once_and_told(store: Store, verb: Verb, sent: Sent) -> None:
    chain = verb.make(store)
    subjects = verb.subjects(chain)
    forget(sent)
    verb.call(chain)
    assert sent == [("default", subjects)]


@verbs
def test_a_rollback_undoes_it_and_nobody_hears_of_it(store: Store, verb: Verb, sent: Sent) -> None:
    chain = verb.make(store)
    before = everything()
    forget(sent)
    with transaction.atomic():
        verb.call(chain)
        assert everything() != before
        transaction.set_rollback(True)
    assert everything() == before
    assert sent == []


@verbs
def test_it_commits_with_the_callers_rows_and_is_told_after_the_outermost_commit(
    store: Store, verb: Verb, sent: Sent
) -> None:
    chain = verb.make(store)
    subjects = verb.subjects(chain)
    forget(sent)
    with transaction.atomic():
        with transaction.atomic():
            verb.call(chain)
        assert sent == []
    assert sent == [("default", subjects)]


@verbs
def test_a_rolled_back_savepoint_takes_its_own_along(store: Store, verb: Verb, sent: Sent) -> None:
    chain = verb.make(store)
    before = everything()
    forget(sent)
    with transaction.atomic(), transaction.atomic():
        verb.call(chain)
        transaction.set_rollback(True)
    assert everything() == before
    assert sent == []


@verbs
def test_what_was_enqueued_in_the_same_transaction_can_be_changed_in_it(verb: Verb, sent: Sent) -> None:
    if verb is RETRY:
        pytest.skip("what nobody saw cannot have failed")
    with transaction.atomic():
        chain = ship.enqueue(delay=60)
        verb.call(chain)
    assert Job.objects.filter(chain_id=chain.id).exists() is (verb is not DELETE)


@verbs
def test_after_an_error_the_callers_transaction_goes_on(store: Store, verb: Verb, sent: Sent) -> None:
    gone = ship.enqueue()
    chains.delete(gone)
    chain = verb.make(store)
    before = everything()
    forget(sent)
    with transaction.atomic():
        with pytest.raises(verb.not_found):
            verb.call([chain.id, gone.id])
        assert everything() == before
        after = ship.enqueue("after")
    assert Job.objects.get(input="after").id == after.id
    assert sent == [("default", {ship.name})]


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_what_changes_nothing_tells_nobody(store: Store, state: str, sent: Sent) -> None:
    chain = STATES[state](store)
    forget(sent)
    chains.cancel(chain)
    if state == "completed":
        chains.retry(chain)
    for verb in VERBS:
        verb.call([])
    assert sent == []


@pytest.mark.parametrize("verb", [CANCEL, DELETE], ids=str)
def test_the_worker_of_a_running_job_is_told(store: Store, verb: Verb, sent: Sent) -> None:
    chain = ship.enqueue()
    go_on(chain)
    job = attempt(store, chain)
    assert job.id != chain.id
    forget(sent)
    verb.call(chain)
    assert [str(job.id) in subjects for _, subjects in sent] == [True]


@verbs
def test_the_async_twin_does_the_same(store: Store, verb: Verb) -> None:
    chain, other = verb.make(store), verb.make(store)

    async def call(given: Any) -> Any:
        return await verb.acall(given)

    result = async_to_sync(call)([chain])
    assert result == ({chain.id} if verb.returns_ids else None)
    before = everything()
    with transaction.atomic():
        async_to_sync(call)(other.id)
        assert everything() != before
        transaction.set_rollback(True)
    with pytest.raises(TypeError):
        async_to_sync(call)(["x"])
    assert everything() == before


@verbs
def test_using_names_another_database(verb: Verb, second_alias: str, settings: Any) -> None:
    settings.JOBCHAINS = {"DATABASE": second_alias}
    chain = ship.enqueue(delay=3600)  # the setting names it, for those who make the chain
    if verb is RETRY:
        chains.cancel(chain)
    settings.JOBCHAINS = {}
    with pytest.raises(verb.not_found):
        verb.call(chain.id)
    before = Job.objects.using(second_alias).values().get()
    verb.call(chain.id, using=second_alias)
    assert list(Job.objects.using(second_alias).values()) != [before]
    assert get_store().using == "default"
    with pytest.raises(ChainNotFound):
        chains.get(chain.id)


def forget(sent: Sent) -> None:
    """What making the chains told; and a hint of the same kind and subject is left out for a moment."""
    from django_jobchains.notifications import get_notifier
    from django_jobchains.notifications.merging import Merger

    get_notifier("default")._merger = Merger()
    sent.clear()
