"""The thread that looks: it lives while somebody waits, ends when nobody does, and no error of one harms another."""

import contextlib
import threading
from typing import Any

import pytest
from django.db import connection

from django_jobchains import chains, waiting
from django_jobchains.chains import ChainTimeout
from django_jobchains.notifications import EVERY, chain_finished
from tests.attempts.work import committed
from tests.waiting.waiters import (
    IN_PROCESS,
    Looks,
    Waiting,
    approval,
    finish,
    sessions,
    threads,
    until_waiting,
)
from tests.worker.waiting import until

pytestmark = committed


@pytest.fixture
def in_process(settings: Any) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}}


@pytest.fixture
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LINGER_SECONDS", 0.1)


def wait_briefly() -> None:
    with pytest.raises(ChainTimeout):
        chains.wait(approval.enqueue().id, 0.01)


@pytest.mark.usefixtures("quick_poll", "short_linger")
def test_the_thread_and_its_connections_are_gone_after_the_last_waiter() -> None:
    chain, other = approval.enqueue(), approval.enqueue()
    first, last = Waiting(chain.id), Waiting(other.id)
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
def test_closing_ends_the_thread_and_its_connections_at_once(monkeypatch: pytest.MonkeyPatch, looks: Looks) -> None:
    monkeypatch.setattr(waiting, "LINGER_SECONDS", 1_000)
    monkeypatch.setattr(waiting, "IDLE_SECONDS", 1_000)
    wait_briefly()
    looks.until_settled()
    waiting.get_watch("default").close(30)
    assert threads() == []
    if connection.vendor == "postgresql":
        until(lambda: sessions() == 0)


@pytest.mark.usefixtures("no_poll")
def test_closing_while_somebody_waits_changes_nothing_for_him() -> None:
    chain = approval.enqueue()
    waiter = Waiting(chain.id)
    until_waiting()
    waiting.get_watch("default").close(0.01)
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.usefixtures("no_poll", "in_process")
def test_closing_is_never_lost_however_soon_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LINGER_SECONDS", 1_000)
    monkeypatch.setattr(waiting, "IDLE_SECONDS", 1_000)
    monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 0)
    chain = approval.enqueue()
    for step in range(100):
        with contextlib.suppress(ChainTimeout):
            chains.wait(chain.id, step / 50_000)
        waiting.get_watch("default").close(30)
        assert threads() == []


@pytest.mark.usefixtures("no_poll", "in_process")
def test_who_comes_while_the_thread_ends_is_served_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LINGER_SECONDS", 0.001)
    monkeypatch.setattr(waiting, "IDLE_SECONDS", 0.001)
    for number in range(20):
        chain = approval.enqueue()
        waiter = Waiting(chain.id)
        if number % 2:
            until_waiting()
        finish(chain, number)
        assert waiter.output() == number


@pytest.mark.usefixtures("no_poll", "in_process")
def test_who_comes_later_is_looked_at_at_once(looks: Looks) -> None:
    chain, ended = approval.enqueue(), approval.enqueue()
    waiter = Waiting(chain.id)
    finish(ended, "done")
    looks.until_settled()
    assert Waiting(ended.id).output() == "done"
    finish(chain)
    waiter.output()


@pytest.mark.usefixtures("no_poll", "in_process")
def test_who_comes_during_a_look_is_in_the_next(looks: Looks) -> None:
    chain, ended = approval.enqueue(), approval.enqueue()
    finish(ended, "done")
    waiter = Waiting(chain.id)
    looks.until_settled()
    late: list[Waiting] = []

    def come() -> None:
        late.append(Waiting(ended.id))
        until_waiting(2)

    looks.before = come
    finish(chain)
    waiter.output()
    assert late[0].output() == "done"


@pytest.mark.usefixtures("quick_poll", "short_linger", "in_process")
def test_hints_about_any_chain_do_not_keep_the_thread_alive() -> None:
    """On SQLite every commit is one."""
    wait_briefly()
    watch = waiting.get_watch("default")

    def is_gone() -> bool:
        for _ in range(100):
            watch.on_hint(chain_finished(EVERY))
        return threads() == []

    until(is_gone)


@pytest.mark.usefixtures("no_poll")
def test_a_wait_after_the_end_of_the_thread_starts_another() -> None:
    for number in range(3):
        chain = approval.enqueue()
        waiter = Waiting(chain.id)
        until_waiting()
        finish(chain, number)
        assert waiter.output() == number
        waiting.get_watch("default").close(30)
        assert threads() == []


def test_racing_first_waiters_share_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_watches", {})
    barrier = threading.Barrier(16)
    watches: list[waiting.Watch] = []

    def ask() -> None:
        barrier.wait(30)
        watches.append(waiting.get_watch("default"))

    asking = [threading.Thread(target=ask) for _ in range(16)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(watches) == 16
    assert len(set(map(id, watches))) == 1
