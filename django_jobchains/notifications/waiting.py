"""Waiting for chains to end. One listener and one statement at a time serve all waiters of a process.

The database decides whether a chain has ended. Hints only decide when to query it.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from logging import getLogger
from typing import Any, overload
from uuid import UUID

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_jobchains.db import call_in_forks
from django_jobchains.db.async_twins import has_async_twin
from django_jobchains.db.ids import ChainPart, ChainRef, chain_id_of
from django_jobchains.db.setup import is_in_memory, thread_problem
from django_jobchains.exceptions import (
    ChainCancelled,
    ChainFailed,
    ChainNotCommitted,
    ChainNotFound,
    ChainTimeout,
    InvalidOutput,
    JobTypeMismatch,
)
from django_jobchains.notifications import EVERY, Hint, Listener, get_notifier
from django_jobchains.notifications.hints import REQUERY_SECONDS
from django_jobchains.payloads.codecs import decode_json, decode_text
from django_jobchains.payloads.types import HasTypes, OutputT_co, output_codec
from django_jobchains.statuses import Status
from django_jobchains.store import Store, get_store
from django_jobchains.store.rows import ChainEnd, ChainWait
from django_jobchains.telemetry.tracing import active, start_wait
from django_jobchains.text.errors import log_error, log_text
from django_jobchains.text.humanize import span
from django_jobchains.values import DurationLike, timeout_seconds

logger = getLogger("django_jobchains")

#: The interval of queries while hints can arrive.
POLL_SECONDS = 5.0
#: The interval of queries while no hints can arrive.
POLL_WITHOUT_HINTS_SECONDS = 0.25
#: The pause after a query that failed.
RETRY_SECONDS = 0.5
#: An unused connection is closed after this time.
IDLE_SECONDS = 1.0
#: The thread ends after this time without a waiting call.
LINGER_SECONDS = 2.0
#: The share of the time that queries may take, however many waiters and hints there are.
MAX_QUERY_SHARE = 0.2
#: However short a timeout is, the chain is queried once, if the database responds within this time.
FIRST_QUERY_SECONDS = 1.0
#: A call that has timed out waits this long for the reason that its error contains.
REASON_SECONDS = 0.5


@overload
def wait(
    chain_id: ChainPart[OutputT_co],
    timeout: DurationLike | None,
    *,
    job_type: None = None,
    using: str | None = None,
) -> OutputT_co: ...
@overload
def wait(
    chain_id: ChainRef,
    timeout: DurationLike | None,
    *,
    job_type: HasTypes[Any, OutputT_co],
    using: str | None = None,
) -> OutputT_co: ...
@overload
def wait(
    chain_id: ChainRef, timeout: DurationLike | None, *, job_type: str | None = None, using: str | None = None
) -> Any: ...
@has_async_twin("chains", "await chains.await_chain(…)")
def wait(chain_id: ChainRef, timeout: DurationLike | None, *, job_type: Any = None, using: Any = None) -> Any:
    """Wait until a chain has ended, and return its output, as a value of the output type of its last job.

    ``timeout`` is a timedelta or seconds; None waits without a limit. Raises ``ChainTimeout`` (the chain continues),
    ``ChainFailed``, ``ChainCancelled``, ``ChainNotFound``, ``JobTypeMismatch`` if the chain does not start with
    ``job_type``, and ``InvalidOutput`` if the stored output does not fit its type. Inside the transaction that enqueued
    the chain, raises ``ChainNotCommitted``: no worker can see the chain yet.
    """
    job_type = job_type or getattr(chain_id, "job_type", None)
    chain_id, seconds = chain_id_of(chain_id), timeout_seconds(timeout)
    using = get_store(using).using
    ending = _query_in_transaction(chain_id, using)
    if ending is not None and is_known(ending, job_type):
        return result_of(ending, job_type)
    changed = threading.Event()
    span = start_wait(chain_id, _type_name(job_type))
    waiter = Waiter(chain_id, changed.set, job_type, span, is_uncommitted=ending is not None)
    with active(span):
        with get_watcher(using).watching(waiter) as query_now:
            for left in waiter.remaining(seconds, query_now):
                changed.wait(left)
                changed.clear()
        return waiter.result(seconds)


@overload
async def await_chain(
    chain_id: ChainPart[OutputT_co],
    timeout: DurationLike | None,  # noqa: ASYNC109
    *,
    job_type: None = None,
    using: str | None = None,
) -> OutputT_co: ...
@overload
async def await_chain(
    chain_id: ChainRef,
    timeout: DurationLike | None,  # noqa: ASYNC109
    *,
    job_type: HasTypes[Any, OutputT_co],
    using: str | None = None,
) -> OutputT_co: ...
@overload
async def await_chain(
    chain_id: ChainRef,
    timeout: DurationLike | None,  # noqa: ASYNC109
    *,
    job_type: str | None = None,
    using: str | None = None,
) -> Any: ...
async def await_chain(
    chain_id: ChainRef,
    timeout: DurationLike | None,  # noqa: ASYNC109
    *,
    job_type: Any = None,
    using: Any = None,
) -> Any:
    """``wait`` for async code, without blocking a thread."""
    job_type = job_type or getattr(chain_id, "job_type", None)
    chain_id, seconds = chain_id_of(chain_id), timeout_seconds(timeout)
    using = get_store(using).using
    ending = await sync_to_async(_query_in_transaction)(chain_id, using)
    if ending is not None and is_known(ending, job_type):
        return result_of(ending, job_type)
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    notify = partial(loop.call_soon_threadsafe, changed.set)
    span = start_wait(chain_id, _type_name(job_type))
    waiter = Waiter(chain_id, notify, job_type, span, is_uncommitted=ending is not None)
    with active(span):
        with get_watcher(using).watching(waiter) as query_now:
            for left in waiter.remaining(seconds, query_now):
                with suppress(TimeoutError):  # in Python 3.11, wait_for may lose a cancellation
                    async with asyncio.timeout(left):
                        await changed.wait()
                changed.clear()
        return waiter.result(seconds)


def _type_name(job_type: Any) -> str:
    """Return the type that the chain should start with, or "" if the caller does not know it."""
    return str(getattr(job_type, "name", job_type or ""))


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


def is_known(end: ChainEnd, job_type: Any) -> bool:
    """Return whether ``result_of`` knows what to return or raise. ``job_type``: what the chain should start with."""
    return end.is_final or _is_other(end, job_type)


def result_of(end: ChainEnd, job_type: Any) -> Any:
    """Return the output of an ended chain, or raise the error for how it ended.

    Each waiter decodes the output on its own thread, so that invalid output fails only that waiter, and not the query
    that serves all of them.
    """
    if end.status is None:
        raise ChainNotFound(end.chain_id)
    if _is_other(end, job_type):
        raise JobTypeMismatch(end.chain_id, _type_name(job_type), end.chain_type_name)
    if end.status == Status.FAILED:
        raise ChainFailed(end.chain_id, decode_text(end.error or ""))
    if end.status == Status.CANCELLED:
        raise ChainCancelled(end.chain_id, is_expired=bool(end.is_expired))
    expected = None if isinstance(job_type, str) else job_type
    return output_codec(end.type_name, expected).decode(decode_json(end.output or "null", InvalidOutput), InvalidOutput)


def _is_other(end: ChainEnd, job_type: Any) -> bool:
    return bool(job_type and end.status and end.chain_type_name != _type_name(job_type))


class Waiter:
    """A call that waits for a chain, which should start with ``job_type``.

    All queries for it run on the watcher's thread, so that its timeout applies while the database does not respond.
    ``span``: the ``WaitSpan`` of the call, or None. ``is_uncommitted``: its transaction sees the chain, but others may
    not.
    """

    def __init__(
        self, chain_id: UUID, notify: Callable[[], object], job_type: Any, span: Any, *, is_uncommitted: bool
    ) -> None:
        self.chain_id = chain_id
        self._job_type = job_type
        self._span = span
        self.ending: ChainEnd | None = None
        #: The chain's status at the last query.
        self.status: str | None = None
        self._was_queried = False
        #: Whether the time is up, and the call only waits for the reason: what the chain waits for, or "".
        self._needs_reason = False
        self._reason = ""
        #: The error of the last query, or "".
        self.error = ""
        self._notify = notify
        self._is_uncommitted = is_uncommitted

    def update(self, ending: ChainEnd, store: Store) -> None:
        """Receive the result of a query, on the watcher's thread."""
        is_first, self._was_queried = not self._was_queried, True
        self.status, self.error = ending.status, ""
        if is_known(ending, self._job_type):
            self.ending = ending
        if is_first and self._span is not None:
            self._span.link(self.chain_id, store.chains.contexts)
        if is_late := self._needs_reason:
            self._reason = "" if self.ending else _reason(ending, store)
            self._needs_reason = False
        if is_first or is_late or self.ending:
            self._notify()

    def result(self, timeout: float | None) -> Any:
        """Return the output, or raise the error for how the chain ended, or ``ChainTimeout``."""
        if self.ending is None:
            reason = self._reason or (self.error and f"the query of its status failed: {self.error}")
            raise ChainTimeout(self.chain_id, timeout or 0, self.status, reason)
        if self.ending.status is None and self._is_uncommitted:
            raise ChainNotCommitted(self.chain_id)
        return result_of(self.ending, self._job_type)

    def remaining(self, timeout: float | None, query_now: Callable[[], object]) -> Iterator[float | None]:
        """Yield the remaining seconds until the chain has ended, or the time is up and it was queried once.

        After that, yield the remaining seconds in which a query, which ``query_now`` starts, may return the reason.
        """
        started = time.monotonic()
        while self.ending is None:
            left = None if timeout is None else started + timeout - time.monotonic()
            if left is not None and left <= 0:
                left = started + max(timeout or 0, FIRST_QUERY_SECONDS) - time.monotonic()
                if self._was_queried or left <= 0:
                    break
            yield left
        if self.ending is not None or self.status is None:
            return
        self._needs_reason = True
        query_now()
        until = time.monotonic() + REASON_SECONDS
        while self._needs_reason and (left := until - time.monotonic()) > 0:
            yield left
        self._needs_reason = False


def _reason(ending: ChainEnd, store: Store) -> str:
    """Return what a chain that has not ended waits for, or "" if that is unknown."""
    try:
        found = store.chains.wait_of(ending.chain_id)
        return "" if found is None or found.status != ending.status else _reason_of(found, store)
    except Exception:  # The timeout is the error to raise.
        return ""


def _reason_of(found: ChainWait, store: Store) -> str:
    if found.status == Status.BLOCKED:
        return "it is blocked by other chains that have not completed"
    if found.status != Status.PENDING:
        return f"its job {found.type_name!r} is {found.status}"
    config: Any = apps.get_app_config("django_jobchains")
    job_type = config.registry.find(found.type_name)
    if job_type is not None and job_type.processor is None:
        return f"{found.type_name!r} is completed from outside, by a person or a program that calls chains.complete()"
    if found.due_seconds > 0:
        reason = f"its job {found.type_name!r} is due in {span(found.due_seconds)}"
        if not found.failures:
            return reason
        return f"{reason}, after {found.failures} failed attempt{'s' if found.failures > 1 else ''}"
    if found.is_paused:
        return f"its queue {found.queue!r} is paused. Resume it with manage.py jobchains resume {found.queue}"
    if found.has_worker:
        reason = f"its job {found.type_name!r} is due, but all workers are busy, or run other types or queues"
        # A task of Django's framework is not declared, and this process may not have used it.
        if job_type is not None or found.type_name in store.task_names.read():
            return reason
        return f"{reason}, or do not know its type, which no jobs module of an app in INSTALLED_APPS declares"
    return (
        "no worker is running. Start one with manage.py run_jobworker; in a test without one, call "
        "django_jobchains.testing.run_due_jobs() first"
    )


class ChainWatcher:
    """Queries the chains that calls in this process wait for, on a thread that runs while there are any."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._changed = threading.Condition()
        #: Keyed by the chain's id in the form that the subjects of hints have.
        self._waiters: dict[str, list[Waiter]] = {}
        self._thread: threading.Thread | None = None
        #: A thread that has ended its work may still be closing its connections.
        self._last_thread: threading.Thread | None = None
        self._is_closing = False
        self._receives_hints: Callable[[], bool] = lambda: False
        # Monotonic times: the next query, its earliest time, the last query, the last hint, the last waiter's end.
        self._query_at = self._rest_until = self._used_at = self._hint_at = self._left_at = 0.0

    @contextmanager
    def watching(self, waiter: Waiter) -> Iterator[Callable[[], None]]:
        """Query the chain of a waiter inside the block. Yields a function that lets the next query begin at once."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"jobchains-waiting-{self._using}", daemon=True)
                thread.start()
                self._thread = self._last_thread = thread
            self._waiters.setdefault(str(waiter.chain_id), []).append(waiter)
            self._is_closing = False
            self._query_now()
        try:
            yield self._query_now
        finally:
            with self._changed:
                self._remove(waiter)
                self._left_at = time.monotonic()

    def _query_now(self) -> None:
        with self._changed:
            self._query_at = 0.0
            self._changed.notify_all()

    def _remove(self, waiter: Waiter) -> None:
        key = str(waiter.chain_id)
        self._waiters[key].remove(waiter)
        if not self._waiters[key]:
            del self._waiters[key]

    def close(self, seconds: float = 2.0) -> None:
        """Stop the thread and close its connections, if no call waits."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            thread = self._last_thread
        if thread is not None:
            thread.join(seconds)

    def on_hint(self, hint: Hint) -> None:
        with self._changed:
            if self._waiters and (hint.subject == EVERY or hint.subject in self._waiters):
                self._query_at = 0.0
                self._hint_at = time.monotonic()
                self._changed.notify_all()

    def _run(self) -> None:
        # This thread does not use Django's connection pool, because the calls that wait may occupy all of it.
        connection = connections[self._using]
        options = {name: value for name, value in connection.settings_dict["OPTIONS"].items() if name != "pool"}
        connection.settings_dict = {**connection.settings_dict, "OPTIONS": options}
        listener = self._listen()
        try:
            while (chain_ids := self._next()) is not None:
                self._query(chain_ids)
        finally:
            self._disconnect()
            listener.close()

    def _listen(self) -> Listener:
        try:
            notifier = get_notifier(self._using)
            listener = notifier.listen(self.on_hint, {"chain_finished"})
            self._receives_hints = lambda: notifier.carries_hints and listener.is_alive
        except Exception as error:
            log_error(logger, error, "The notifier does not report chains that end, so they are polled: %s")
            self._receives_hints = lambda: False
            return Listener()
        return listener

    def _next(self) -> list[UUID] | None:
        """Wait until the next query is due, and return the chains to query, or None if no call waits."""
        with self._changed:
            while True:
                now = time.monotonic()
                if not self._waiters and (self._is_closing or now >= self._left_at + LINGER_SECONDS):
                    self._thread = None  # the next waiter starts another one
                    return None
                until = max(self._query_at, self._rest_until) if self._waiters else self._left_at + LINGER_SECONDS
                if self._waiters and now >= until:
                    self._query_at = now + (POLL_SECONDS if self._receives_hints() else POLL_WITHOUT_HINTS_SECONDS)
                    return [waiters[0].chain_id for waiters in self._waiters.values()]
                if connections[self._using].connection is not None:
                    if now >= self._used_at + IDLE_SECONDS:
                        self._disconnect()
                    until = min(until, max(self._used_at + IDLE_SECONDS, now))
                self._changed.wait(until - now)

    def _query(self, chain_ids: list[UUID]) -> None:
        started = time.monotonic()
        try:
            endings = get_store(self._using).chains.ends(chain_ids)
        except Exception as error:
            text = log_text(error)
            logger.warning("The query for chains that are waited for failed and will be repeated: %s", text)
            self._disconnect()
            with self._changed:
                for chain_id in chain_ids:
                    for waiter in self._waiters.get(str(chain_id), ()):
                        waiter.error = text
                self._query_at, self._rest_until = 0.0, time.monotonic() + RETRY_SECONDS
            return
        self._update_waiters(endings)
        self._schedule_next(started)

    def _schedule_next(self, started: float) -> None:
        """Pause in proportion to the query, and query again after a hint: senders drop hints that follow closely."""
        with self._changed:
            now = self._used_at = time.monotonic()
            self._rest_until = now + (now - started) * (1 / MAX_QUERY_SHARE - 1)
            if self._hint_at + REQUERY_SECONDS > started:
                self._query_at = min(self._query_at, self._hint_at + REQUERY_SECONDS)

    def _update_waiters(self, endings: dict[UUID, ChainEnd]) -> None:
        with self._changed:
            updates = [
                (waiter, ending) for id_, ending in endings.items() for waiter in self._waiters.get(str(id_), ())
            ]
            for waiter, ending in updates:
                self._name_chain(waiter, ending.chain_id)
        for waiter, ending in updates:
            try:
                waiter.update(ending, get_store(self._using))
            except Exception as error:  # its event loop is closed
                logger.warning("A waiter for chain %s could not be notified: %s", waiter.chain_id, log_text(error))

    def _name_chain(self, waiter: Waiter, chain_id: UUID) -> None:
        """Let a waiter for the id of a later job wait for the id of its chain, which hints contain."""
        if waiter.chain_id != chain_id:
            self._remove(waiter)
            waiter.chain_id = chain_id
            self._waiters.setdefault(str(chain_id), []).append(waiter)
            self._query_at = 0.0  # it may have missed a hint

    def _disconnect(self) -> None:
        with suppress(Exception):  # a broken connection is closed anyway
            connections[self._using].close()


_watchers: dict[str, ChainWatcher] = {}
call_in_forks(_watchers.clear)  # threads do not survive a fork


def get_watcher(using: str) -> ChainWatcher:
    """Return the watcher of a database alias in this process."""
    return _watchers.setdefault(using, ChainWatcher(using))
