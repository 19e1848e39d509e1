"""After a fork the child waits with a thread and connections of its own."""

import threading
from typing import Any

import pytest
from django.db import connection

from django_jobchains import chains, waiting
from django_jobchains.notifications import chain_finished, get_notifier
from tests.attempts.work import committed
from tests.waiting.forking import Child
from tests.waiting.waiters import (
    IN_PROCESS,
    NULL,
    Waiting,
    approval,
    finish,
    until_waiting,
    waiter_count,
)

pytestmark = [committed, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


@pytest.mark.usefixtures("quick_poll")
@pytest.mark.parametrize("backend", [None, NULL, IN_PROCESS])
def test_a_child_of_a_process_that_waits_can_wait_itself(settings: Any, backend: str | None) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": backend}} if backend else {}
    ended, later, own = approval.enqueue(), approval.enqueue(), approval.enqueue()
    finish(ended, "done")
    waiter = Waiting(own.id)
    until_waiting()
    if connection.vendor == "sqlite":  # whose library may be left locked in a child by a thread that is just in it
        finish(own, "the parent's")
        waiter.output()
        waiting.get_watch("default").close(30)
    child = Child([waiter_count, lambda: chains.wait(ended.id, 30), lambda: chains.wait(later.id, 30)])
    try:
        assert child.answer() == 0
        assert child.answer() == "done"
        finish(later, "later")
        assert child.answer() == "later"
    finally:
        child.end()
    if connection.vendor != "sqlite":
        finish(own, "the parent's")
    assert waiter.output() == "the parent's"


def test_a_child_is_not_held_up_by_a_lock_that_the_parent_had_taken(settings: Any) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}}
    chain = approval.enqueue()
    waiter = Waiting(chain.id)
    until_waiting()
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        with waiting.get_watch("default")._changed:
            held.set()
            released.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    child = Child([lambda: get_notifier("default").publish([chain_finished(chain.id)])], seconds=10)
    try:
        assert child.answer() is None
    finally:
        released.set()
        holder.join()
        child.end()
    finish(chain)
    waiter.output()
