"""The functions of ``django_jobchains.queues``, which work in the caller's transaction, and what is claimed then."""

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from django_jobchains import queues
from django_jobchains.notifications import EVERY, Hint, get_notifier
from tests.support.jobs import MAIL, SHIP, WORKER, create

pytestmark = pytest.mark.django_db

RESYNC = Hint("job_scheduled", EVERY)


def rules():
    return {state.name: (state.paused_at is not None, state.slot_limit) for state in queues.states()}


def test_pauses_and_limits_are_independent_and_listed_by_name():
    queues.pause("mail", "slow", "mail")
    queues.set_limit("mail", 3)
    queues.set_limit("mail", 2)
    queues.set_limit("bulk", 1, using="default")
    assert list(rules().items()) == [("bulk", (False, 1)), ("mail", (True, 2)), ("slow", (True, None))]
    queues.resume("mail", using="default")
    queues.set_limit("bulk", None)
    assert rules() == {"mail": (False, 2), "slow": (True, None)}
    queues.pause("mail")
    queues.set_limit("mail", None)
    assert rules() == {"mail": (True, None), "slow": (True, None)}


def test_repeated_calls_change_nothing():
    queues.pause("mail")
    [before] = queues.states()
    queues.pause("mail", using="default")
    queues.resume("other")
    queues.set_limit("other", None)
    [after] = queues.states(using="default")
    assert after.paused_at == before.paused_at
    assert abs((before.paused_at - timezone.now()).total_seconds()) < 60


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: queues.pause("good", ""), "^queue=.* is not a name"),
        (lambda: queues.resume(None), "^queue=.* is not a name"),
        (lambda: queues.set_limit(None, 3), "^queue=.* is not a name"),
        (lambda: queues.pause(), "at least one"),
        (lambda: queues.resume(), "at least one"),
        (lambda: queues.set_limit("mail", 0), r"slots=.* from 1 to 2147483647, or None\. To start no jobs, pause"),
        (lambda: queues.set_limit("mail", 2**31), r"slots=.* from 1 to 2147483647, or None"),
    ],
)
def test_invalid_arguments_are_refused(call, error):
    with pytest.raises((TypeError, ValueError), match=error):
        call()
    assert rules() == {}


def test_changes_are_rolled_back_with_the_transaction():
    queues.set_limit("mail", 5)
    with transaction.atomic():
        queues.pause("mail", "slow")
        queues.set_limit("mail", 1)
        assert rules() == {"mail": (True, 1), "slow": (True, None)}
        transaction.set_rollback(True)
    assert rules() == {"mail": (False, 5)}


@pytest.mark.django_db(transaction=True)
def test_workers_are_notified_after_the_commit(monkeypatch):
    hints = []
    monkeypatch.setattr(get_notifier("default"), "publish", hints.extend)
    with transaction.atomic():
        queues.pause("mail")
        queues.resume("mail")
        queues.set_limit("mail", 3)
        assert hints == []
    assert hints == [RESYNC, RESYNC, RESYNC]


@pytest.mark.django_db(transaction=True)
def test_every_function_has_an_async_variant():
    async def run():
        await queues.apause("mail", "slow")
        await queues.aset_limit("mail", 2)
        await queues.aresume("slow")
        return await queues.astates()

    [state] = async_to_sync(run)()
    assert (state.name, state.slot_limit) == ("mail", 2)


# Claims, beyond the store's contract

LEASES = {SHIP: 60.0, MAIL: 60.0}


@pytest.fixture
def claimed(store):
    for queue in ("a", "b", "c"):
        create(store, 2, SHIP, queue=queue)
        create(store, 1, MAIL, queue=queue, priority=5)
    return lambda served, excluded: sorted(job.queue for job in store.jobs.claim(WORKER, 100, LEASES, served, excluded))


@pytest.mark.parametrize("name", ["it's", 'a "b"', "a,b", "%s", "ü✓"])
def test_any_queue_name_can_be_excluded(store, claimed, name):
    create(store, 2, queue=name)
    assert claimed(None, [name, "a", "b"]) == ["c", "c", "c"]
    assert claimed([name], ()) == [name, name]


def test_next_due_time_ignores_excluded_queues(store, claimed):
    create(store, queue="later", delay_seconds=100)
    assert store.jobs.next_due(LEASES, None, ["a", "b", "c", "later"]) is None
    assert 90 < store.jobs.next_due(LEASES, None, ["a", "b", "c"]) <= 101


def test_paused_queues_are_neither_claimed_nor_due(store, claimed):
    store.queues.pause(["a", "b", "c"])
    store.queues.limit("c", 1)
    assert claimed(None, ()) == claimed(["a", "c"], ["c"]) == []
    assert store.jobs.next_due(LEASES) is None
    store.queues.resume(["c"])
    assert store.jobs.next_due(LEASES, ["a", "b"]) is None
    assert store.jobs.next_due(LEASES) is not None
    assert claimed(None, ["a"]) == ["c", "c", "c"], "only the worker knows how many of them may run"
