"""The watcher's thread runs while there are waiters, and ends with its connections after the last one."""

import contextlib

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.chains import ChainTimeout
from django_jobchains.notifications import EVERY, chain_finished, waiting
from django_jobchains.testing.contracts.concurrency import at_once
from tests.support.attempts import committed
from tests.support.waiting import until
from tests.waiting.waiters import (
    WAIT_CALLS,
    WaitingThread,
    approval,
    finish,
    sessions,
    threads,
    until_waiting,
    waited_for,
)

pytestmark = committed


@pytest.fixture
def linger(monkeypatch):
    """Return a function that sets how long the thread and its connection stay without waiters."""

    def linger(seconds):
        monkeypatch.setattr(waiting, "LINGER_SECONDS", seconds)
        monkeypatch.setattr(waiting, "IDLE_SECONDS", seconds)

    return linger


def wait_briefly(seconds=0.01):
    with contextlib.suppress(ChainTimeout):
        chains.wait(approval.enqueue().id, seconds)


def until_closed():
    until(lambda: threads() == [])
    if connection.vendor == "postgresql":
        until(lambda: sessions() == 0)


@pytest.mark.usefixtures("quick_poll")
def test_thread_and_connections_are_closed_after_the_last_waiter(linger):
    linger(0.1)
    (chain, first), (other, last) = waited_for(), waited_for()
    finish(chain)
    first.output()
    assert "jobchains-waiting-default" in threads()
    finish(other)
    last.output()
    until_closed()


@pytest.mark.usefixtures("no_poll")
def test_close_ends_thread_and_connections_at_once(linger, queries):
    linger(1_000)
    wait_briefly()
    until(lambda: len(queries))
    waiting.get_watcher("default").close(30)
    assert threads() == []
    until_closed()


@pytest.mark.usefixtures("no_poll")
def test_close_does_not_affect_waiters():
    chain, waiter = waited_for()
    waiting.get_watcher("default").close(0.01)
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.usefixtures("no_poll", "in_process")
def test_close_right_after_a_wait_is_not_lost(linger, monkeypatch):
    linger(1_000)
    monkeypatch.setattr(waiting, "FIRST_QUERY_SECONDS", 0)
    for step in range(100):
        wait_briefly(step / 50_000)
        waiting.get_watcher("default").close(30)
        assert threads() == []


@pytest.mark.usefixtures("no_poll", "in_process")
def test_waiter_that_arrives_while_the_thread_ends_is_served_by_the_next(linger):
    linger(0.001)
    for number in range(20):
        chain = approval.enqueue()
        waiter = WaitingThread(chain.id)
        if number % 2:
            until_waiting()
        finish(chain, number)
        assert waiter.output() == number


@pytest.mark.usefixtures("no_poll", "in_process")
def test_new_waiter_is_queried_at_once(queries):
    (chain, waiter), ended = waited_for(), approval.enqueue()
    finish(ended, "done")
    queries.until_idle()
    assert WaitingThread(ended.id).output() == "done"
    finish(chain)
    waiter.output()


@pytest.mark.usefixtures("no_poll", "in_process")
def test_waiter_that_arrives_during_a_query_is_in_the_next(queries):
    (chain, waiter), ended, late = waited_for(), approval.enqueue(), []
    finish(ended, "done")
    queries.until_idle()

    def start_late_waiter():
        late.append(WaitingThread(ended.id))
        until_waiting(2)

    queries.before_next = start_late_waiter
    finish(chain)
    waiter.output()
    assert late[0].output() == "done"


@pytest.mark.usefixtures("quick_poll", "in_process")
def test_hints_about_any_chain_do_not_keep_the_thread_alive(linger):
    """On SQLite every commit causes such a hint."""
    linger(0.1)
    wait_briefly()
    watcher = waiting.get_watcher("default")

    def is_gone():
        for _ in range(100):
            watcher.on_hint(chain_finished(EVERY))
        return threads() == []

    until(is_gone)


@pytest.mark.postgresql
@pytest.mark.usefixtures("small_pool")
@pytest.mark.parametrize("wait", [WAIT_CALLS["result"], WAIT_CALLS["aresult"]], ids=["result", "aresult"])
def test_calls_that_occupy_all_connections_of_djangos_pool_are_notified(wait):
    waits = [waited_for(wait) for _ in range(2)]
    for chain, _ in waits:
        finish(chain, "done")
    assert [waiter.output() for _, waiter in waits] == ["done", "done"]


def test_racing_first_waiters_share_one_thread(monkeypatch):
    monkeypatch.setattr(waiting, "_watchers", {})
    watchers = at_once([lambda: waiting.get_watcher("default")] * 16)
    assert len(set(map(id, watchers))) == 1
