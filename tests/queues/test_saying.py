"""What can be said about queues, and that it is said in the caller's transaction."""

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from django_jobchains import queues
from django_jobchains.notifications import EVERY, Hint, get_notifier

pytestmark = pytest.mark.django_db

LOOK = Hint("job_scheduled", EVERY)


def said() -> dict[str, tuple[bool, int | None]]:
    return {state.name: (state.paused_at is not None, state.slot_limit) for state in queues.states()}


def test_a_queue_is_paused_and_resumed() -> None:
    queues.pause("mail", "slow")
    assert said() == {"mail": (True, None), "slow": (True, None)}
    queues.resume("mail")
    assert said() == {"slow": (True, None)}


def test_a_queue_has_a_limit_until_it_is_lifted() -> None:
    queues.set_limit("mail", 3)
    queues.set_limit("mail", 2)
    assert said() == {"mail": (False, 2)}
    queues.set_limit("mail", None)
    assert said() == {}


def test_pausing_and_limiting_leave_each_other_alone() -> None:
    queues.pause("mail")
    queues.set_limit("mail", 3)
    assert said() == {"mail": (True, 3)}
    queues.resume("mail")
    assert said() == {"mail": (False, 3)}
    queues.pause("mail")
    queues.set_limit("mail", None)
    assert said() == {"mail": (True, None)}


def test_what_is_said_again_changes_nothing() -> None:
    queues.pause("mail", "mail")
    [before] = queues.states()
    queues.pause("mail")
    queues.resume("other")
    queues.set_limit("other", None)
    [after] = queues.states()
    assert after.paused_at == before.paused_at
    assert before.paused_at is not None
    assert abs((before.paused_at - timezone.now()).total_seconds()) < 60


def test_states_are_in_the_order_of_their_names() -> None:
    queues.pause("c", "a")
    queues.set_limit("b", 1)
    assert list(said()) == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 101, None, 3])
def test_a_name_is_checked(name: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: queues.pause("good", name),
        lambda: queues.resume(name),
        lambda: queues.set_limit(name, 3),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="is not a valid queue name"):
            call()
    assert said() == {}


def test_at_least_one_queue_is_named() -> None:
    for call in (queues.pause, queues.resume):
        with pytest.raises(TypeError, match="at least one"):
            call()


@pytest.mark.parametrize("slots", [0, -1, 1.5, "3", True, 2**31])
def test_a_limit_is_a_whole_number_from_1(slots: Any) -> None:
    with pytest.raises(ValueError, match=r"whole number from 1.*pause the queue"):
        queues.set_limit("mail", slots)
    assert said() == {}


def test_it_joins_the_callers_transaction() -> None:
    class Undone(Exception):
        pass

    queues.set_limit("mail", 5)
    with pytest.raises(Undone), transaction.atomic():
        queues.pause("mail", "slow")
        queues.set_limit("mail", 1)
        assert said() == {"mail": (True, 1), "slow": (True, None)}
        raise Undone
    assert said() == {"mail": (False, 5)}


@pytest.mark.django_db(transaction=True)
def test_workers_are_told_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Hint] = []
    monkeypatch.setattr(get_notifier("default"), "publish", told.extend)
    with transaction.atomic():
        queues.pause("mail")
        queues.resume("mail")
        queues.set_limit("mail", 3)
        assert told == []
    assert told == [LOOK, LOOK, LOOK]


@pytest.mark.django_db(transaction=True)
def test_each_call_has_an_async_twin() -> None:
    async def run() -> list[queues.QueueState]:
        await queues.apause("mail", "slow")
        await queues.aset_limit("mail", 2)
        await queues.aresume("slow")
        return await queues.astates()

    [state] = async_to_sync(run)()
    assert (state.name, state.slot_limit) == ("mail", 2)


def test_the_database_can_be_named() -> None:
    queues.pause("mail", using="default")
    queues.set_limit("mail", 2, using="default")
    assert [state.name for state in queues.states(using="default")] == ["mail"]
    queues.resume("mail", using="default")
