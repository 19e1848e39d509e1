"""Transactions around blocks of async code, which Django does not have."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from asgiref.sync import AsyncToSync, SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

from django_jobchains.db.connections import close_thread_connections
from django_jobchains.db.setup import is_in_memory

ValueT = TypeVar("ValueT")


@asynccontextmanager
async def entered_on_thread(block: Callable[[], AbstractContextManager[ValueT]], using: str) -> AsyncIterator[ValueT]:
    """Enter the context manager that ``block`` returns, and that opens a transaction, for a block of async code.

    The queries of the block run on a separate thread, and so on a separate connection: otherwise, the queries of
    concurrent tasks would become part of the transaction. If the caller has a transaction open, it is joined on its
    thread.
    """
    if await sync_to_async(lambda: connections[using].in_atomic_block or is_in_memory(using))():
        async with _entered(block) as value:
            yield value
        return
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jobchains-async-block")
    try:
        with _queries_on(executor):
            async with _entered(block) as value:
                yield value
    finally:
        closing = asyncio.wrap_future(executor.submit(close_thread_connections))
        was_cancelled = await wait_uncancelled(closing)
        executor.shutdown()
        if was_cancelled:
            raise asyncio.CancelledError


@contextmanager
def _queries_on(executor: ThreadPoolExecutor) -> Iterator[None]:
    """Run the calls of ``sync_to_async`` in the block, and so the queries of Django's async ORM, on this executor."""
    context = ThreadSensitiveContext()
    SyncToAsync.context_to_thread_executor[context] = executor
    token = SyncToAsync.thread_sensitive_context.set(context)
    outer, AsyncToSync.executors.current = getattr(AsyncToSync.executors, "current", None), None
    try:
        yield
    finally:
        AsyncToSync.executors.current = outer
        SyncToAsync.thread_sensitive_context.reset(token)


@asynccontextmanager
async def _entered(block: Callable[[], AbstractContextManager[ValueT]]) -> AsyncIterator[ValueT]:
    """Enter and leave a context manager on the thread. It is left even if the task is cancelled while it is entered."""
    stack = ExitStack()
    try:
        yield await sync_to_async(lambda: stack.enter_context(block()))()
    except BaseException as error:
        await _leave(stack, error)
        raise
    await _leave(stack)


async def _leave(stack: ExitStack, error: BaseException | None = None) -> None:
    details = (type(error), error, error.__traceback__) if error else (None, None, None)
    leaving = asyncio.ensure_future(sync_to_async(stack.__exit__)(*details))
    was_cancelled = await wait_uncancelled(leaving)
    leaving.result()
    if was_cancelled:
        raise asyncio.CancelledError


async def wait_uncancelled(future: "asyncio.Future[Any]") -> bool:
    """Wait for a future even if the waiting task is cancelled. Return whether it was cancelled."""
    was_cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            was_cancelled = True
    return was_cancelled
