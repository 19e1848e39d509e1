"""The results of chains: their outputs, once they have ended."""

import asyncio
import math
import threading
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, overload
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_jobchains.db.ids import ChainPart, ChainRef, chain_id_of
from django_jobchains.db.setup import is_in_memory, thread_problem
from django_jobchains.exceptions import ChainNotCommitted
from django_jobchains.payload_types import OutputT_co
from django_jobchains.payloads import HasOutput
from django_jobchains.store import ChainEnd, get_store
from django_jobchains.telemetry.tracing import active, start_wait
from django_jobchains.values import ANY_DURATION, MAX_SECONDS
from django_jobchains.waiting import Waiter, get_watcher, is_known, result_of


@overload
def wait(
    chain_id: ChainPart[OutputT_co],
    timeout: timedelta | float | None,
    *,
    job_type: None = None,
    using: str | None = None,
) -> OutputT_co: ...
@overload
def wait(
    chain_id: ChainRef,
    timeout: timedelta | float | None,
    *,
    job_type: HasOutput[OutputT_co],
    using: str | None = None,
) -> OutputT_co: ...
@overload
def wait(
    chain_id: ChainRef, timeout: timedelta | float | None, *, job_type: str | None = None, using: str | None = None
) -> Any: ...
def wait(chain_id: ChainRef, timeout: timedelta | float | None, *, job_type: Any = None, using: Any = None) -> Any:
    """Wait until a chain has ended, and return its output, as a value of the output type of its last job.

    ``timeout`` is a timedelta or seconds; None waits without a limit. Raises ``ChainTimeout`` (the chain continues),
    ``ChainFailed``, ``ChainCancelled``, ``ChainNotFound``, ``JobTypeMismatch`` if the chain does not start with
    ``job_type``, and ``InvalidOutput`` if the stored output does not fit its type. Inside the transaction that enqueued
    the chain, raises ``ChainNotCommitted``: no worker can see the chain yet.
    """
    job_type = job_type or getattr(chain_id, "job_type", None)
    chain_id, seconds = chain_id_of(chain_id), _timeout_seconds(timeout)
    using = get_store(using).using
    ending = _query_in_transaction(chain_id, using)
    if ending is not None and is_known(ending, job_type):
        return result_of(ending, job_type)
    changed = threading.Event()
    waiter = Waiter(chain_id, changed.set, job_type, is_uncommitted=ending is not None)
    if (span := start_wait(chain_id, _type_name(job_type))) is not None:
        span.link(chain_id, get_store(using).chains.contexts)
    with active(span):
        with get_watcher(using).watching(waiter):
            for left in waiter.remaining(seconds):
                changed.wait(left)
                changed.clear()
        return waiter.result(seconds)


@overload
async def await_chain(
    chain_id: ChainPart[OutputT_co],
    timeout: timedelta | float | None,  # noqa: ASYNC109
    *,
    job_type: None = None,
    using: str | None = None,
) -> OutputT_co: ...
@overload
async def await_chain(
    chain_id: ChainRef,
    timeout: timedelta | float | None,  # noqa: ASYNC109
    *,
    job_type: HasOutput[OutputT_co],
    using: str | None = None,
) -> OutputT_co: ...
@overload
async def await_chain(
    chain_id: ChainRef,
    timeout: timedelta | float | None,  # noqa: ASYNC109
    *,
    job_type: str | None = None,
    using: str | None = None,
) -> Any: ...
async def await_chain(
    chain_id: ChainRef,
    timeout: timedelta | float | None,  # noqa: ASYNC109
    *,
    job_type: Any = None,
    using: Any = None,
) -> Any:
    """``wait`` for async code, without blocking a thread."""
    job_type = job_type or getattr(chain_id, "job_type", None)
    chain_id, seconds = chain_id_of(chain_id), _timeout_seconds(timeout)
    using = get_store(using).using
    ending = await sync_to_async(_query_in_transaction)(chain_id, using)
    if ending is not None and is_known(ending, job_type):
        return result_of(ending, job_type)
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    notify = partial(loop.call_soon_threadsafe, changed.set)
    waiter = Waiter(chain_id, notify, job_type, is_uncommitted=ending is not None)
    if (span := start_wait(chain_id, _type_name(job_type))) is not None:
        await sync_to_async(span.link)(chain_id, get_store(using).chains.contexts)
    with active(span):
        with get_watcher(using).watching(waiter):
            for left in waiter.remaining(seconds):
                with suppress(TimeoutError):  # in Python 3.11, wait_for may lose a cancellation
                    async with asyncio.timeout(left):
                        await changed.wait()
                changed.clear()
        return waiter.result(seconds)


def _type_name(job_type: Any) -> str:
    """Return the type that the chain should start with, or "" if the caller does not know it."""
    return str(getattr(job_type, "name", job_type or ""))


def _timeout_seconds(timeout: timedelta | float | None) -> float | None:
    """Return the seconds, or None for no limit. Raise ``TypeError`` or ``ValueError`` for other values."""
    seconds = ANY_DURATION.check_or("timeout", timeout, math.inf)
    return None if seconds > MAX_SECONDS else seconds


def _query_in_transaction(chain_id: UUID, using: str) -> ChainEnd | None:
    """Query the chain in this thread's open transaction, as in a test. Return None if there is none, or no such chain.

    Raise ``ChainNotCommitted`` for SQLite in memory, where the open transaction locks all others out, and
    ``ImproperlyConfigured`` for a database that other threads cannot use.
    """
    problem = thread_problem(using)
    if not (problem or connections[using].in_atomic_block):
        return None
    ending = get_store(using).chains.ends([chain_id])[chain_id]
    if ending.is_final and ending.status is not None:
        return ending
    if problem:
        raise ImproperlyConfigured(f"Chain {chain_id} cannot be waited for: no worker can run it. {problem}")
    if ending.status is not None and is_in_memory(using):
        raise ChainNotCommitted(chain_id)
    return None if ending.status is None else ending
