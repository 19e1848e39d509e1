"""What goes wrong in one look, thread, or wait harms no other, and is got over."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_jobchains import chains, waiting
from django_jobchains.chains import ChainTimeout
from django_jobchains.exceptions import InvalidOutput
from django_jobchains.models import Job
from tests.attempts.work import committed
from tests.waiting.waiters import (
    DROPPING,
    LONG,
    Ask,
    Looks,
    Waiting,
    approval,
    each_function,
    finish,
    threads,
    until_waiting,
    waiter_count,
)

pytestmark = committed


@pytest.mark.usefixtures("no_poll")
@pytest.mark.parametrize("error", [DatabaseError("gone"), RuntimeError("no room")])
def test_a_look_that_fails_is_tried_again_before_the_poll(
    looks: Looks, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    chain = approval.enqueue()
    finish(chain, "done")
    looks.before = lambda: raises(error)
    assert chain.result(60) == "done"
    assert str(error) in caplog.text


@pytest.mark.postgresql
@pytest.mark.usefixtures("no_poll")
def test_sessions_that_the_server_ends_are_replaced(looks: Looks) -> None:
    chain = approval.enqueue()
    waiter = Waiting(chain.id)
    looks.until_settled()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert cursor.fetchone()[0] >= 1
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.parametrize("backend", ["tests.waiting.test_errors.NoNotifier", "tests.nowhere.Notifier"])
def test_without_a_listener_it_polls(settings: Any, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    chain = approval.enqueue()
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": backend}}
    waiter = Waiting(chain.id)
    until_waiting()
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": DROPPING}}
    finish(chain, "done")
    assert waiter.output() == "done"
    assert "so they are polled" in caplog.text
    waiting.get_watch("default").close(30)
    assert threads() == []


@pytest.mark.usefixtures("no_poll")
def test_a_thread_that_cannot_be_started_is_an_error_of_one_wait_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = approval.enqueue()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda thread: raises(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            chains.wait(chain.id, 30)
    assert waiter_count() == 0
    finish(chain, "done")
    assert chain.result(60) == "done"


@pytest.mark.usefixtures("no_poll")
def test_a_waiter_whose_event_loop_is_closed_harms_nobody(looks: Looks) -> None:
    chain = approval.enqueue()
    with abandoned_wait(chain):
        waiter = Waiting(chain.id)
        until_waiting(2)
        finish(chain, "done")
        assert waiter.output() == "done"
        later = approval.enqueue()
        waiter = Waiting(later.id)
        looks.until_settled()
        finish(later, "done too")
        assert waiter.output() == "done too"


@each_function
@pytest.mark.usefixtures("no_poll")
def test_a_wrong_id_or_timeout_is_an_error_of_one_wait_alone(ask: Ask, looks: Looks) -> None:
    chain = approval.enqueue()
    waiter = Waiting(chain.id)
    looks.until_settled()
    for wrong in ({"id": chain.id}, str(chain.id), [chain.id], None):
        with pytest.raises(TypeError, match=r"chain_id expects a uuid\.UUID, a Chain or a Job"):
            ask(wrong, LONG)  # type: ignore[arg-type]
    for timeout in ("5", "5m", [5]):
        with pytest.raises(TypeError, match=r"timeout=.* is not a length of time: pass seconds, or a timedelta"):
            ask(chain.id, timeout)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout=nan"):
        ask(chain.id, float("nan"))
    finish(chain, "done")
    assert waiter.output() == "done"


@each_function
def test_a_timeout_beyond_all_numbers_is_for_ever(ask: Ask) -> None:
    chain = approval.enqueue()
    finish(chain, "done")
    for timeout in (10**400, Fraction(10**400), -(10**400)):
        assert ask(chain.id, timeout) == "done"  # type: ignore[arg-type]


@each_function
def test_a_chain_and_a_job_of_it_are_as_good_as_its_id(ask: Ask) -> None:
    chain = approval.enqueue()
    with chains.complete(chain) as current:
        current.continue_with(approval)
        current.finish("done")
    for given in (chain.id, chain, chain.refresh().current_job):
        assert ask(given, timedelta(seconds=30)) == "done"  # type: ignore[arg-type]


@each_function
@pytest.mark.usefixtures("no_poll")
def test_an_output_that_cannot_be_decoded_is_an_error_of_those_who_wait_for_it(ask: Ask, looks: Looks) -> None:
    broken, fine = approval.enqueue(), approval.enqueue()
    waiters = [Waiting(broken.id, ask=ask), Waiting(fine.id, ask=ask)]
    until_waiting(2)
    looks.until_settled()
    with transaction.atomic():
        finish(broken)
        finish(fine, "done")
        with connection.cursor() as cursor:
            deep = "[" * 990 + "]" * 990
            table = Job._meta.db_table
            cursor.execute(f"UPDATE {table} SET output = %s WHERE output IS NOT NULL AND id = %s", [deep, key(broken)])
    assert waiters[1].output() == "done"
    with pytest.raises(InvalidOutput, match=r"cannot be decoded|nested deeper"):
        waiters[0].output()


def key(chain: chains.Chain) -> object:
    return chain.id if connection.vendor == "postgresql" else chain.id.hex


def raises(error: Exception) -> None:
    raise error


class NoNotifier:
    """Cannot even be made."""

    carries_hints = True

    def __init__(self, using: str) -> None:
        self.using = using

    def publish(self, hints: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def listen(self, on_hint: Any) -> Any:
        raise OSError("no route to host")


@contextlib.contextmanager
def abandoned_wait(chain: chains.Chain) -> Iterator[None]:
    """A task that waits on a loop which was closed under it."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(chain.aresult(None))
    while not waiter_count():
        loop.run_until_complete(asyncio.sleep(0.01))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    yield
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task.get_coro().close()  # type: ignore[union-attr]
    assert waiter_count() == 0


@pytest.mark.usefixtures("no_poll")
def test_a_task_that_is_cancelled_leaves_no_waiter() -> None:
    chain = approval.enqueue()

    async def cancel() -> None:
        tasks = [asyncio.create_task(chain.aresult(timeout)) for timeout in (None, 60)]
        await asyncio.to_thread(until_waiting, 2)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    assert waiter_count() == 0


@pytest.mark.usefixtures("no_poll")
@pytest.mark.parametrize("moments", range(6))
def test_a_task_that_is_cancelled_when_it_is_just_told_something_ends(looks: Looks, moments: int) -> None:
    chain = approval.enqueue()

    async def cancel() -> None:
        task = asyncio.create_task(chain.aresult(10))
        await asyncio.to_thread(until_waiting, 1)
        await asyncio.to_thread(looks.until_settled)
        waiting.get_watch("default")._waiters[chain.id][0]._notify()
        for _ in range(moments):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert waiter_count() == 0


@pytest.mark.usefixtures("no_poll")
def test_a_timeout_around_it_is_the_callers() -> None:
    chain = approval.enqueue()

    async def give_up() -> None:
        async with asyncio.timeout(0.1):
            await chain.aresult(None)

    with pytest.raises(TimeoutError) as caught:
        asyncio.run(give_up())
    assert not isinstance(caught.value, ChainTimeout)
    assert waiter_count() == 0


def test_a_timeout_of_its_own_leaves_no_waiter() -> None:
    with pytest.raises(ChainTimeout):
        approval.enqueue().result(0.01)
    assert waiter_count() == 0
