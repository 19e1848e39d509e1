"""The contract of a pool of children."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, closing
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from django_jobchains.exceptions import JobAborted
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.pools import (
    Call,
    ChildCrashed,
    ChildPool,
    ChildSession,
    ChildTimeout,
    PoolClosed,
    PooledChild,
    PoolTimeout,
    RemoteError,
    StreamedCall,
)
from django_jobchains.testing.contracts.concurrency import DEADLINE_SECONDS, until

ECHO, PID, FAIL, DIE, HANG, WAIT = (
    f"django_jobchains.testing.pool_functions:{name}"
    for name in ("echo", "pid", "fail", "die", "hang", "wait_for_abort")
)
sync_and_async = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


class PoolContract:
    """The tests that every pool of child processes must pass. Define how one is created::

        class TestMine(PoolContract):
            def make(self) -> ChildPool:
                return MyPool(max_workers=2, grace_seconds=0.5)

    The pool must have room for two children, and a short grace period.
    """

    #: Whether released children are used again, and ``acquire`` waits while all children are in use.
    keeps_children = True

    def make(self) -> ChildPool:
        raise NotImplementedError

    @pytest.fixture
    def pool(self) -> Iterator[ChildPool]:
        pool = self.make()
        yield pool
        pool.terminate()

    def begun(self, child: PooledChild, target: str) -> "tuple[Call, Future[Any]]":
        """Start a call that another thread waits for. Return the call and its future result, after it has begun."""
        begun = threading.Event()
        call = child.start(target, on_message=lambda message: begun.set())
        future = on_thread(call.wait)
        assert begun.wait(DEADLINE_SECONDS)
        return call, future

    # Calls

    def test_a_function_runs_in_another_process(self, pool: ChildPool) -> None:
        with ChildSession(pool, key="images") as child:
            assert child.key == "images"
            assert child.run(PID) == child.pid != os.getpid()
            assert child.run(ECHO, {"size": [1, 2.5, None]}) == {"size": [1, 2.5, None]}

    def test_an_error_arrives_as_text_and_the_child_lives(self, pool: ChildPool) -> None:
        with ChildSession(pool) as child:
            with pytest.raises(RemoteError) as caught:
                child.run(FAIL, "no such image")
            assert (caught.value.type_name, caught.value.message) == ("ValueError", "no such image")
            assert child.run(PID) == child.pid

    def test_a_process_that_dies_fails_its_own_call_only(self, pool: ChildPool) -> None:
        with ChildSession(pool) as neighbor, ChildSession(pool) as child:
            _, waiting = self.begun(neighbor, HANG)
            with pytest.raises(ChildCrashed) as caught:
                child.run(DIE)
            assert caught.value.exitcode == -signal.SIGKILL
            assert not child.is_alive
            assert not waiting.done()

    def test_a_call_that_takes_too_long_is_ended(self, pool: ChildPool) -> None:
        with ChildSession(pool) as child:
            with pytest.raises(ChildTimeout):
                child.run(HANG, timeout=0.1)
            assert not child.is_alive

    def test_an_aborted_signal_stops_the_call(self, pool: ChildPool) -> None:
        abort = AbortSignal()
        with ChildSession(pool) as child:
            threading.Timer(0.05, abort.abort, ["cancelled"]).start()
            with pytest.raises(JobAborted, match="cancelled"):
                child.run(WAIT, signal=abort)

    def test_calls_that_have_not_begun_can_be_withdrawn(self, pool: ChildPool) -> None:
        with ChildSession(pool) as child:
            begun = threading.Event()
            calls = child.start_all(WAIT, [None, *range(2000)], on_message=lambda message: begun.set())
            waiting = on_thread(calls[0].wait)
            assert begun.wait(DEADLINE_SECONDS)
            child.withdraw()
            assert [call.is_withdrawn for call in calls] == [False, *[True] * 2000]
            calls[0].abort("cancelled")
            assert waiting.result(DEADLINE_SECONDS) == "cancelled"
            assert child.run(ECHO, 1) == 1

    def test_requests_are_numbered_from_0(self, pool: ChildPool) -> None:
        assert [pool.next_request_id(), pool.next_request_id()] == [0, 1]

    # A child has one user

    def test_a_late_release_does_not_affect_the_next_user(self, pool: ChildPool) -> None:
        with ChildSession(pool):
            first = pool.acquire()
            pool.release(first)
            with ChildSession(pool) as second:
                call, waiting = self.begun(second, WAIT)
                pool.release(first)
                pool.release(first, broken=True)
                if self.keeps_children:
                    with pytest.raises(PoolTimeout):
                        pool.acquire(timeout=0.01)
                call.abort("cancelled")
                assert waiting.result(DEADLINE_SECONDS) == "cancelled"

    def test_a_released_child_runs_no_calls(self, pool: ChildPool) -> None:
        child = pool.acquire()
        pool.release(child)
        with pytest.raises(RuntimeError, match="released"):
            child.run(ECHO, 1)

    def test_a_release_ends_the_call_that_another_thread_waits_for(self, pool: ChildPool) -> None:
        child = pool.acquire()
        call, waiting = self.begun(child, HANG)
        pool.release(child)
        assert isinstance(waiting.exception(DEADLINE_SECONDS), ChildCrashed)
        with pytest.raises(ChildCrashed):
            call.wait(DEADLINE_SECONDS)
        until(lambda: not exists(child.pid))

    def test_a_child_that_is_released_as_broken_is_not_used_again(self, pool: ChildPool) -> None:
        child = pool.acquire()
        pool.release(child, broken=True)
        assert pool.size == 0
        until(lambda: not exists(child.pid))

    def test_a_pool_is_full_at_its_limit_and_saturated_when_no_child_is_idle(self, pool: ChildPool) -> None:
        def sizes() -> tuple[int, bool, bool]:
            return pool.size, pool.is_full(), pool.is_saturated()

        seen = [sizes()]
        with ChildSession(pool):
            seen.append(sizes())
            with ChildSession(pool):
                seen.append(sizes())
        seen.append(sizes())
        if self.keeps_children:
            assert seen == [(0, False, False), (1, False, False), (2, True, True), (2, True, False)]
        else:
            assert seen == [(0, False, False)] * 4

    # Its end

    def test_terminate_ends_children_calls_and_the_pool(self, pool: ChildPool) -> None:
        idle, busy = pool.acquire(), pool.acquire()
        pool.release(idle)
        _, waiting = self.begun(busy, HANG)
        pool.terminate()
        assert isinstance(waiting.exception(DEADLINE_SECONDS), PoolClosed)
        for call in (pool.acquire, lambda: busy.run(ECHO, 1), lambda: pool.run(ECHO, 1)):
            with pytest.raises(PoolClosed):
                call()
        pool.release(busy)
        pool.release(busy)
        pool.terminate()
        assert (pool.size, pool.is_full(), pool.is_saturated()) == (0, False, False)
        until(lambda: not (exists(idle.pid) or exists(busy.pid)))

    # Calls without a child of one's own, for sync and async callers

    @sync_and_async
    def test_run_acquires_and_releases_a_child(self, pool: ChildPool, is_async: bool) -> None:
        def run(target: str, *payloads: Any, **options: Any) -> list[Any]:
            if not is_async:
                return [pool.run(target, payload, **options) for payload in payloads]
            return asyncio.run(gathered(pool.arun(target, payload, **options) for payload in payloads))

        assert run(ECHO, *range(12)) == [*range(12)]
        with pytest.raises(RemoteError, match="ValueError: no"):
            run(FAIL, "no")
        with pytest.raises(ChildTimeout):
            run(HANG, None, timeout=0.1)
        assert not pool.is_saturated()

    def test_a_cancelled_task_ends_its_call_and_releases_the_child(self, pool: ChildPool) -> None:
        async def main() -> None:
            tasks = await self.tasks(pool, HANG, HANG, ECHO)
            for task in reversed(tasks):
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in ended] == [asyncio.CancelledError] * 3
            assert await pool.arun(ECHO, 2) == 2
            assert not pool.is_saturated()

        asyncio.run(main())

    def test_terminate_ends_async_calls(self, pool: ChildPool) -> None:
        async def main() -> None:
            tasks = await self.tasks(pool, *[HANG] * 4)
            pool.terminate()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in ended] == [PoolClosed] * 4
            with pytest.raises(PoolClosed):
                await pool.arun(ECHO, 1)

        asyncio.run(main())

    async def tasks(self, pool: ChildPool, *targets: str) -> "list[asyncio.Task[Any]]":
        """Start calls, and wait until all children are in use."""
        tasks = [asyncio.create_task(pool.arun(target)) for target in targets]
        await asyncio.to_thread(until, lambda: pool.size == 2 or not self.keeps_children)
        return tasks

    @sync_and_async
    def test_a_stream_yields_each_call_as_it_ends(self, pool: ChildPool, is_async: bool) -> None:
        def stream(target: str, payloads: Iterable[Any]) -> list[StreamedCall]:
            if is_async:
                return asyncio.run(collected(pool.astream(target, payloads, timeout=60)))
            return list(pool.stream(target, payloads, timeout=60))

        ended = sorted((call.index, call.payload, call.result()) for call in stream(WAIT, map(str, range(12))))
        assert ended == [(number, str(number), str(number)) for number in range(12)]
        (failed,) = stream(FAIL, ["no"])
        with pytest.raises(RemoteError, match="ValueError: no"):
            failed.result()

    @sync_and_async
    def test_a_stream_that_ends_early_ends_its_calls(self, pool: ChildPool, is_async: bool) -> None:
        read: list[int] = []

        def payloads() -> Iterator[str | None]:
            """Yield a payload that is returned immediately, and many that wait for an abort."""
            for number in range(1000):
                read.append(number)
                yield None if number else "first"

        async def afirst() -> StreamedCall:
            async with aclosing(pool.astream(WAIT, payloads())) as calls:
                return await anext(aiter(calls))

        def first() -> StreamedCall:
            with closing(pool.stream(WAIT, payloads())) as calls:  # type: ignore[type-var]
                return next(iter(calls))

        assert (asyncio.run(afirst()) if is_async else first()).result() == "first"
        assert len(read) < 100
        assert pool.run(ECHO, 1) == 1
        assert not pool.is_saturated()

    def test_calls_that_would_block_an_event_loop_are_refused(self, pool: ChildPool) -> None:
        with ChildSession(pool) as child:
            call = child.start(ECHO, 1)

            async def main() -> None:
                for blocking in (
                    pool.acquire,
                    lambda: pool.run(ECHO),
                    lambda: child.run(ECHO),
                    call.wait,
                    lambda: pool.stream(ECHO, [1]),
                ):
                    with pytest.raises(SynchronousOnlyOperation, match=r"would block the event loop: use '.*pool\.a"):
                        blocking()

            asyncio.run(main())
            assert call.wait() == 1


async def gathered(calls: Iterable[Any]) -> list[Any]:
    return await asyncio.gather(*calls)


async def collected(calls: Any) -> list[Any]:
    return [call async for call in calls]


def on_thread(call: Callable[[], Any]) -> "Future[Any]":
    """Call a function on a new thread, and return its future result."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
