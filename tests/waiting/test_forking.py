"""A forked child waits with its own thread and connections."""

import threading

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.notifications import chain_finished, get_notifier, waiting
from tests.support.attempts import committed
from tests.support.forks import Child
from tests.waiting.waiters import IN_PROCESS, NULL, approval, finish, waited_for, waiter_count

pytestmark = [committed, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


@pytest.mark.usefixtures("quick_poll")
@pytest.mark.parametrize("backend", [None, NULL, IN_PROCESS])
def test_forked_child_can_wait(settings, backend):
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": backend}} if backend else {}
    ended, later = approval.enqueue(), approval.enqueue()
    finish(ended, "done")
    own, waiter = waited_for()
    if connection.vendor == "sqlite":  # a fork during a call of its library would leave it locked in the child
        finish(own, "the parent's")
        waiter.output()
        waiting.get_watcher("default").close(30)
    child = Child([waiter_count, lambda: chains.wait(ended.id, 30), lambda: chains.wait(later.id, 30)])
    try:
        assert [child.answer(), child.answer()] == [0, "done"]
        finish(later, "later")
        assert child.answer() == "later"
    finally:
        child.end()
    if connection.vendor != "sqlite":
        finish(own, "the parent's")
    assert waiter.output() == "the parent's"


@pytest.mark.usefixtures("in_process")
def test_lock_held_by_the_parent_does_not_block_a_forked_child():
    chain, waiter = waited_for()
    held, released = threading.Event(), threading.Event()

    def hold():
        with waiting.get_watcher("default")._changed:
            held.set()
            released.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    child = Child([lambda: get_notifier("default").publish([chain_finished(chain.id)])], seconds=30)
    try:
        assert child.answer() is None
    finally:
        released.set()
        holder.join()
        child.end()
    finish(chain)
    waiter.output()
