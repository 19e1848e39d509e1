"""Every operation joins the transaction of its caller, publishes hints after the commit, and has an async twin."""

from contextlib import ExitStack, nullcontext

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_jobchains import chains
from django_jobchains.chains import ChainNotFound
from django_jobchains.models import Job
from django_jobchains.store import get_store
from tests.interventions.verbs import CANCEL, DELETE, RETRY, VERBS
from tests.support.attempts import committed
from tests.support.chains import STATES, attempt, go_on, ship
from tests.support.jobs import tables

pytestmark = committed

verbs = pytest.mark.parametrize("verb", VERBS, ids=str)
Sent = list[tuple[str, set[str]]]


@verbs
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_hints_are_sent_after_the_outermost_commit(store, verb, sent, depth):
    chain = verb.make(store)
    subjects = verb.subjects(chain)
    forget(sent)
    with ExitStack() as blocks:
        for _ in range(depth):
            blocks.enter_context(transaction.atomic())
        verb.call(chain)
        assert not (depth and sent)
    assert sent == [("default", subjects)]


@verbs
@pytest.mark.parametrize("in_savepoint", [False, True])
def test_a_rollback_undoes_the_operation_and_sends_no_hint(store, verb, sent, in_savepoint):
    chain = verb.make(store)
    before = tables()
    forget(sent)
    with transaction.atomic() if in_savepoint else nullcontext(), transaction.atomic():
        verb.call(chain)
        assert tables() != before
        transaction.set_rollback(True)
    assert tables() == before
    assert sent == []


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb is not RETRY], ids=str)
def test_a_chain_can_be_changed_in_the_transaction_that_enqueued_it(verb):
    with transaction.atomic():
        chain = ship.enqueue(delay=60)
        verb.call(chain)
    assert Job.objects.filter(chain_id=chain.id).exists() is (verb is not DELETE)


@verbs
def test_the_transaction_of_the_caller_continues_after_an_error(store, verb, sent):
    gone = ship.enqueue()
    chains.delete(gone)
    chain = verb.make(store)
    before = tables()
    forget(sent)
    with transaction.atomic():
        with pytest.raises(verb.not_found):
            verb.call([chain.id, gone.id])
        assert tables() == before
        after = ship.enqueue("after")
    assert Job.objects.get(input="after").id == after.id
    assert sent == [("default", {ship.name})]


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_operations_that_change_nothing_send_no_hint(store, state, sent):
    chain = STATES[state](store)
    forget(sent)
    chains.cancel(chain)
    if state == "completed":
        chains.retry(chain)
    for verb in VERBS:
        verb.call([])
    assert sent == []


@pytest.mark.parametrize("verb", [CANCEL, DELETE], ids=str)
def test_the_worker_of_a_running_job_receives_a_hint(store, verb, sent):
    chain = ship.enqueue()
    go_on(chain)
    job = attempt(store, chain)
    assert job.id != chain.id
    forget(sent)
    verb.call(chain)
    assert [str(job.id) in subjects for _, subjects in sent] == [True]


@verbs
def test_the_async_twin_does_the_same(store, verb):
    chain, other = verb.make(store), verb.make(store)

    async def call(given):
        return await verb.acall(given)

    result = async_to_sync(call)([chain])
    assert result == ({chain.id} if verb.returns_ids else None)
    before = tables()
    with transaction.atomic():
        async_to_sync(call)(other.id)
        assert tables() != before
        transaction.set_rollback(True)
    with pytest.raises(ValueError, match="'x' is not an id"):
        async_to_sync(call)(["x"])
    assert tables() == before


@verbs
def test_using_selects_the_database(verb, second_alias, settings):
    settings.JOBCHAINS = {"DATABASE": second_alias}
    chain = ship.enqueue(delay=3600)  # in the database of the setting
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


def forget(sent):
    """Forget the hints of the setup, and let the next ones be sent although they equal recent ones."""
    from django_jobchains.notifications import get_notifier
    from django_jobchains.notifications.hints import HintMerger

    get_notifier("default")._merger = HintMerger()
    sent.clear()
