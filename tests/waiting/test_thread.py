"""The watcher's thread runs while there are waiters, and ends with its connections after the last one."""

import contextlib
import threading

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.chains import ChainTimeout
from django_jobchains.notifications import EVERY, chain_finished, waiting
from tests.support.attempts import committed
from tests.support.waiting import until
from tests.waiting.waiters import (
    IN_PROCESS,
    WaitingThread,
    approval,
    finish,
    sessions,
    threads,
    until_waiting,
)

pytestmark = committed


@pytest.fixture
def in_process(settings):
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}}


@pytest.fixture
def short_linger(monkeypatch):
    monkeypatch.setattr(waiting, "LINGER_SECONDS", 0.1)


def wait_briefly():
    with pytest.raises(ChainTimeout):
        chains.wait(approval.enqueue().id, 0.01)


@pytest.mark.usefixtures("quick_poll", "short_linger")
def test_thread_and_connections_are_closed_after_the_last_waiter():
    chain, other = approval.enqueue(), approval.enqueue()
    first, last = WaitingThread(chain.id), WaitingThread(other.id)
    until_waiting(2)
    finish(chain)
    first.output()
    assert "jobchains-waiting-default" in threads()
    finish(other)
    last.output()
    until(lambda: threads() == [])
    if connection.vendor == "postgresql":
        until(lambda: sessions() == 0)


@pytest.mark.usefixtures("no_poll")
def test_close_ends_thread_and_connections_at_once(monkeypatch, queries):
    monkeypatch.setattr(waiting, "LINGER_SECONDS", 1_000)
    monkeypatch.setattr(waiting, "IDLE_SECONDS", 1_000)
    wait_briefly()
    until(lambda: len(queries))
    waiting.get_watcher("default").close(30)
    assert threads() == []
    if connection.vendor == "postgresql":
        until(lambda: sessions() == 0)


@pytest.mark.usefixtures("no_poll")
def test_close_does_not_affect_waiters():
    chain = approval.enqueue()
    waiter = WaitingThread(chain.id)
    until_waiting()
    waiting.get_watcher("default").close(0.01)
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.usefixtures("no_poll", "in_process")
def test_close_right_after_a_wait_is_not_lost(monkeypatch):
    monkeypatch.setattr(waiting, "LINGER_SECONDS", 1_000)
    monkeypatch.setattr(waiting, "IDLE_SECONDS", 1_000)
    monkeypatch.setattr(waiting, "FIRST_QUERY_SECONDS", 0)
    chain = approval.enqueue()
    for step in range(100):
        with contextlib.suppress(ChainTimeout):
            chains.wait(chain.id, step / 50_000)
        waiting.get_watcher("default").close(30)
        assert threads() == []


@pytest.mark.usefixtures("no_poll", "in_process")
def test_waiter_that_arrives_while_the_thread_ends_is_served_by_the_next(monkeypatch):
    monkeypatch.setattr(waiting, "LINGER_SECONDS", 0.001)
    monkeypatch.setattr(waiting, "IDLE_SECONDS", 0.001)
    for number in range(20):
        chain = approval.enqueue()
        waiter = WaitingThread(chain.id)
        if number % 2:
            until_waiting()
        finish(chain, number)
        assert waiter.output() == number


@pytest.mark.usefixtures("no_poll", "in_process")
def test_new_waiter_is_queried_at_once(queries):
    chain, ended = approval.enqueue(), approval.enqueue()
    waiter = WaitingThread(chain.id)
    finish(ended, "done")
    queries.until_idle()
    assert WaitingThread(ended.id).output() == "done"
    finish(chain)
    waiter.output()


@pytest.mark.usefixtures("no_poll", "in_process")
def test_waiter_that_arrives_during_a_query_is_in_the_next(queries):
    chain, ended = approval.enqueue(), approval.enqueue()
    finish(ended, "done")
    waiter = WaitingThread(chain.id)
    queries.until_idle()
    late = []

    def start_late_waiter():
        late.append(WaitingThread(ended.id))
        until_waiting(2)

    queries.before_next = start_late_waiter
    finish(chain)
    waiter.output()
    assert late[0].output() == "done"


@pytest.mark.usefixtures("quick_poll", "short_linger", "in_process")
def test_hints_about_any_chain_do_not_keep_the_thread_alive():
    """On SQLite every commit causes such a hint."""
    wait_briefly()
    watcher = waiting.get_watcher("default")

    def is_gone():
        for _ in range(100):
            watcher.on_hint(chain_finished(EVERY))
        return threads() == []

    until(is_gone)


@pytest.mark.usefixtures("no_poll")
def test_wait_after_the_thread_has_ended_starts_another():
    for number in range(3):
        chain = approval.enqueue()
        waiter = WaitingThread(chain.id)
        until_waiting()
        finish(chain, number)
        assert waiter.output() == number
        waiting.get_watcher("default").close(30)
        assert threads() == []


def test_racing_first_waiters_share_one_thread(monkeypatch):
    monkeypatch.setattr(waiting, "_watchers", {})
    barrier = threading.Barrier(16)
    watchers = []

    def get_watcher():
        barrier.wait(30)
        watchers.append(waiting.get_watcher("default"))

    racing = [threading.Thread(target=get_watcher) for _ in range(16)]
    for thread in racing:
        thread.start()
    for thread in racing:
        thread.join()
    assert len(watchers) == 16
    assert len(set(map(id, watchers))) == 1
