"""The functions of ``django_jobchains.queues``, which work in the caller's transaction."""

from collections.abc import Callable

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from django_jobchains import queues
from django_jobchains.notifications import EVERY, Hint, get_notifier

pytestmark = pytest.mark.django_db

RESYNC = Hint("job_scheduled", EVERY)


def queue_settings() -> dict[str, tuple[bool, int | None]]:
    return {state.name: (state.paused_at is not None, state.slot_limit) for state in queues.states()}


def test_queue_is_paused_and_resumed():
    queues.pause("mail", "slow")
    assert queue_settings() == {"mail": (True, None), "slow": (True, None)}
    queues.resume("mail")
    assert queue_settings() == {"slow": (True, None)}


def test_limit_is_replaced_and_removed():
    queues.set_limit("mail", 3)
    queues.set_limit("mail", 2)
    assert queue_settings() == {"mail": (False, 2)}
    queues.set_limit("mail", None)
    assert queue_settings() == {}


def test_pause_and_limit_are_independent():
    queues.pause("mail")
    queues.set_limit("mail", 3)
    assert queue_settings() == {"mail": (True, 3)}
    queues.resume("mail")
    assert queue_settings() == {"mail": (False, 3)}
    queues.pause("mail")
    queues.set_limit("mail", None)
    assert queue_settings() == {"mail": (True, None)}


def test_repeated_calls_change_nothing():
    queues.pause("mail", "mail")
    [before] = queues.states()
    queues.pause("mail")
    queues.resume("other")
    queues.set_limit("other", None)
    [after] = queues.states()
    assert after.paused_at == before.paused_at
    assert before.paused_at is not None
    assert abs((before.paused_at - timezone.now()).total_seconds()) < 60


def test_states_are_ordered_by_name():
    queues.pause("c", "a")
    queues.set_limit("b", 1)
    assert list(queue_settings()) == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["", None])
def test_invalid_name_is_refused(name):
    calls: list[Callable[[], object]] = [
        lambda: queues.pause("good", name),
        lambda: queues.resume(name),
        lambda: queues.set_limit(name, 3),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"^queue=.* is not a name"):
            call()
    assert queue_settings() == {}


def test_calls_without_a_name_are_refused():
    for call in (queues.pause, queues.resume):
        with pytest.raises(TypeError, match="at least one"):
            call()


@pytest.mark.parametrize("slots", [0, 2**31])
def test_limit_must_be_a_positive_integer(slots):
    with pytest.raises(ValueError, match=r"slots=.* from 1 to 2147483647, or None\. To start no jobs, pause the queue"):
        queues.set_limit("mail", slots)
    assert queue_settings() == {}


def test_changes_are_rolled_back_with_the_transaction():
    class Undone(Exception):
        pass

    queues.set_limit("mail", 5)
    with pytest.raises(Undone), transaction.atomic():
        queues.pause("mail", "slow")
        queues.set_limit("mail", 1)
        assert queue_settings() == {"mail": (True, 1), "slow": (True, None)}
        raise Undone
    assert queue_settings() == {"mail": (False, 5)}


@pytest.mark.django_db(transaction=True)
def test_workers_are_notified_after_the_commit(monkeypatch):
    hints: list[Hint] = []
    monkeypatch.setattr(get_notifier("default"), "publish", hints.extend)
    with transaction.atomic():
        queues.pause("mail")
        queues.resume("mail")
        queues.set_limit("mail", 3)
        assert hints == []
    assert hints == [RESYNC, RESYNC, RESYNC]


@pytest.mark.django_db(transaction=True)
def test_every_function_has_an_async_variant():
    async def run() -> list[queues.QueueState]:
        await queues.apause("mail", "slow")
        await queues.aset_limit("mail", 2)
        await queues.aresume("slow")
        return await queues.astates()

    [state] = async_to_sync(run)()
    assert (state.name, state.slot_limit) == ("mail", 2)


def test_using_selects_the_database():
    queues.pause("mail", using="default")
    queues.set_limit("mail", 2, using="default")
    assert [state.name for state in queues.states(using="default")] == ["mail"]
    queues.resume("mail", using="default")
