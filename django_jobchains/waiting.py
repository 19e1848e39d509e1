"""Waiting for chains to end. However many wait in a process, one listener and one statement at a time serve them all.

The database says whether a chain has ended; the hint says when to ask it.
"""

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from logging import getLogger
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models import TextField
from django.db.models.functions import Cast

from django_jobchains.database_setup import is_in_memory, thread_problem
from django_jobchains.exceptions import (
    ChainCancelled,
    ChainFailed,
    ChainNotCommitted,
    ChainNotFound,
    ChainTimeout,
    InvalidOutput,
)
from django_jobchains.ids import chain_id_of
from django_jobchains.models import Chain, Job
from django_jobchains.notifications import EVERY, Hint, Listener, get_notifier
from django_jobchains.notifications.merging import LOOK_AGAIN_SECONDS
from django_jobchains.payloads import decode
from django_jobchains.schedules import MOST_SECONDS, seconds_of
from django_jobchains.statuses import FINAL, Status
from django_jobchains.store import get_store
from django_jobchains.texts import log_error, log_text

logger = getLogger("django_jobchains")

#: Between looks that no hint asks for: while hints can arrive, and while they cannot.
POLL_SECONDS = 5.0
POLL_WITHOUT_HINTS_SECONDS = 0.25
#: After a look that failed.
RETRY_SECONDS = 0.5
#: A connection that was not needed for so long is closed; a thread that nobody needed for so long ends.
IDLE_SECONDS = 1.0
LINGER_SECONDS = 2.0
#: The share of the time that looking may take, whatever number waits and however fast hints come.
MOST_LOOKING_SHARE = 0.2
#: However short a timeout is, the chain is looked at once, if the database answers in this time.
FIRST_LOOK_SECONDS = 1.0


def wait(chain_id: UUID | Chain | Job, timeout: timedelta | float | None, *, using: str | None = None) -> Any:
    """Waits until a chain has ended and returns its output, as the JSON value that is stored.

    ``timeout``: a timedelta or seconds; None waits for ever. Raises ``ChainTimeout`` (the chain goes on),
    ``ChainFailed``, ``ChainCancelled``, ``ChainNotFound``, and ``InvalidOutput`` when the stored output cannot be read.
    Inside the transaction that enqueued the chain it raises ``ChainNotCommitted`` at once: no worker sees it yet.
    """
    chain_id, seconds = chain_id_of(chain_id), _timeout_seconds(timeout)
    using = get_store(using).using
    ending = _look_in_transaction(chain_id, using)
    if ending is not None and ending.is_final:
        return ending.result(chain_id)
    changed = threading.Event()
    waiter = Waiter(chain_id, changed.set, is_uncommitted=ending is not None)
    with get_watch(using).watching(waiter):
        for left in waiter.patience(seconds):
            changed.wait(left)
            changed.clear()
    return waiter.result(seconds)


async def await_chain(
    chain_id: UUID | Chain | Job,
    timeout: timedelta | float | None,  # noqa: ASYNC109
    *,
    using: str | None = None,
) -> Any:
    """``wait`` for async code; holds no thread."""
    chain_id, seconds = chain_id_of(chain_id), _timeout_seconds(timeout)
    using = get_store(using).using
    ending = await sync_to_async(_look_in_transaction)(chain_id, using)
    if ending is not None and ending.is_final:
        return ending.result(chain_id)
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    waiter = Waiter(chain_id, lambda: loop.call_soon_threadsafe(changed.set), is_uncommitted=ending is not None)
    with get_watch(using).watching(waiter):
        for left in waiter.patience(seconds):
            with suppress(TimeoutError):  # not wait_for: in Python 3.11 it may lose a cancellation
                async with asyncio.timeout(left):
                    await changed.wait()
            changed.clear()
    return waiter.result(seconds)


def _timeout_seconds(timeout: timedelta | float | None) -> float | None:
    """Return the seconds, or None if there is no limit. Raise an error for what is not a length of time."""
    seconds = math.inf if timeout is None else seconds_of(timeout, "timeout")
    if math.isnan(seconds):
        raise ValueError(f"timeout={timeout!r} is not a length of time.")
    return None if seconds > MOST_SECONDS else seconds


@dataclass(frozen=True)
class Ending:
    """A chain as it was looked at; ``status`` None: it does not exist.

    ``output`` is the stored text. It is decoded on the thread that waits: one that cannot be decoded is an error there,
    and not one of the look that serves all.
    """

    status: str | None
    output: str | None = None
    error: str | None = None

    @property
    def is_final(self) -> bool:
        return self.status is None or self.status in FINAL

    def result(self, chain_id: UUID) -> Any:
        """Return the output of a chain that has ended so, or raise what became of it."""
        if self.status is None:
            raise ChainNotFound(chain_id)
        if self.status == Status.FAILED:
            raise ChainFailed(chain_id, self.error or "")
        if self.status == Status.CANCELLED:
            raise ChainCancelled(chain_id)
        return None if self.output is None else decode(self.output, InvalidOutput)


def _look(chain_ids: list[UUID], using: str) -> dict[UUID, Ending]:
    """One statement, and one more when some have ended; what changed between them is left to the next look."""
    tails = get_store(using).tails(chain_ids)
    ended = [tail.job_id for tail in tails.values() if tail.status in FINAL]
    text = Cast("output", TextField())
    rows = Job.objects.using(using).filter(pk__in=ended).values_list("chain_id", "status", text, "last_error")
    endings = {chain_id: Ending(*rest) for chain_id, *rest in (rows if ended else ())}
    for chain_id in chain_ids:
        tail, ending = tails.get(chain_id), endings.get(chain_id)
        if tail is None:
            endings[chain_id] = Ending(None)
        elif tail.status not in FINAL:
            endings[chain_id] = Ending(tail.status)
        elif ending is None or ending.status != tail.status:
            endings[chain_id] = Ending(Status.RUNNING)
    return endings


def _look_in_transaction(chain_id: UUID, using: str) -> Ending | None:
    """What only this thread's open transaction may see, as in a test; None when none is open or it sees nothing.

    Raises ``ChainNotCommitted`` on SQLite in memory, where the open transaction locks everybody else out, and
    ``ImproperlyConfigured`` for a database that other threads do not share at all.
    """
    problem = thread_problem(using)
    if not (problem or connections[using].in_atomic_block):
        return None
    ending = _look([chain_id], using)[chain_id]
    if ending.is_final and ending.status is not None:
        return ending
    if problem:
        raise ImproperlyConfigured(f"Chain {chain_id} cannot be waited for: no worker can run it. {problem}")
    if ending.status is not None and is_in_memory(using):
        raise ChainNotCommitted(chain_id)
    return None if ending.status is None else ending


class Waiter:
    """One that waits for a chain. ``is_uncommitted``: its own transaction sees the chain, others perhaps not yet."""

    def __init__(self, chain_id: UUID, notify: Callable[[], object], *, is_uncommitted: bool) -> None:
        self.chain_id = chain_id
        self.ending: Ending | None = None
        #: The chain's when it was last looked at.
        self.status: str | None = None
        self._was_looked_at = False
        self._notify = notify
        self._is_uncommitted = is_uncommitted

    def tell(self, ending: Ending) -> None:
        """What a look has seen; on the watch's thread."""
        is_first, self._was_looked_at = not self._was_looked_at, True
        self.status = ending.status
        if ending.is_final:
            self.ending = ending
        if is_first or self.ending:
            self._notify()

    def result(self, timeout: float | None) -> Any:
        """Return the output; raises what became of the chain, or that it has not ended."""
        if self.ending is None:
            raise ChainTimeout(self.chain_id, timeout or 0, self.status)
        if self.ending.status is None and self._is_uncommitted:
            raise ChainNotCommitted(self.chain_id)
        return self.ending.result(self.chain_id)

    def patience(self, timeout: float | None) -> Iterator[float | None]:
        """How long to wait, again and again, until the chain ended or the time is up and it was looked at once."""
        started = time.monotonic()
        while self.ending is None:
            left = None if timeout is None else started + timeout - time.monotonic()
            if left is not None and left <= 0:
                left = started + max(timeout or 0, FIRST_LOOK_SECONDS) - time.monotonic()
                if self._was_looked_at or left <= 0:
                    return
            yield left


class Watch:
    """Looks at the chains that somebody in this process waits for. Its thread lives while somebody does."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._changed = threading.Condition()
        self._waiters: dict[UUID, list[Waiter]] = {}
        self._thread: threading.Thread | None = None
        #: It may still close its connections when there is no thread to be told any more.
        self._last_thread: threading.Thread | None = None
        self._is_closing = False
        self._hears: Callable[[], bool] = lambda: False
        #: Monotonic times: when to look next, and not before; the last look and the last hint; since when nobody waits.
        self._look_at = self._rest_until = self._used_at = self._hint_at = self._left_at = 0.0

    @contextmanager
    def watching(self, waiter: Waiter) -> Iterator[None]:
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"jobchains-waiting-{self._using}", daemon=True)
                thread.start()
                self._thread = self._last_thread = thread
            self._waiters.setdefault(waiter.chain_id, []).append(waiter)
            self._is_closing = False
            self._look_at = 0.0
            self._changed.notify_all()
        try:
            yield
        finally:
            self._remove(waiter)

    def _remove(self, waiter: Waiter) -> None:
        with self._changed:
            self._waiters[waiter.chain_id].remove(waiter)
            if not self._waiters[waiter.chain_id]:
                del self._waiters[waiter.chain_id]
            self._left_at = time.monotonic()

    def close(self, seconds: float = 2.0) -> None:
        """Ends the thread and its connections, if nobody waits."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            thread = self._last_thread
        if thread is not None:
            thread.join(seconds)

    def on_hint(self, hint: Hint) -> None:
        with self._changed:
            if self._waiters and (hint.subject == EVERY or _is_id_of(hint.subject, self._waiters)):
                self._look_at = 0.0
                self._hint_at = time.monotonic()
                self._changed.notify_all()

    def _run(self) -> None:
        listener = self._listen()
        try:
            while (chain_ids := self._next()) is not None:
                self._look(chain_ids)
        finally:
            self._disconnect()
            listener.close()

    def _listen(self) -> Listener:
        try:
            notifier = get_notifier(self._using)
            listener = notifier.listen(self.on_hint, {"chain_finished"})
            self._hears = lambda: notifier.carries_hints and listener.is_alive
        except Exception as error:
            text = "The notifier does not report chains that end, so they are polled: %s"
            log_error(logger, error, text)
            self._hears = lambda: False
            return Listener()
        return listener

    def _next(self) -> list[UUID] | None:
        """Waits until it is time to look, and says at what; None when nobody waits any more."""
        with self._changed:
            while True:
                now = time.monotonic()
                if self._is_over(now):
                    self._thread = None  # from here on whoever comes starts another
                    return None
                until = max(self._look_at, self._rest_until) if self._waiters else self._left_at + LINGER_SECONDS
                if self._waiters and now >= until:
                    self._look_at = now + (POLL_SECONDS if self._hears() else POLL_WITHOUT_HINTS_SECONDS)
                    return list(self._waiters)
                if self._is_connected:
                    if now >= self._used_at + IDLE_SECONDS:
                        self._disconnect()
                    until = min(until, max(self._used_at + IDLE_SECONDS, now))
                self._changed.wait(until - now)

    def _is_over(self, now: float) -> bool:
        return not self._waiters and (self._is_closing or now >= self._left_at + LINGER_SECONDS)

    def _look(self, chain_ids: list[UUID]) -> None:
        started = time.monotonic()
        try:
            endings = _look(chain_ids, self._using)
        except Exception as error:
            logger.warning("Chains that are waited for could not be looked at, trying again: %s", log_text(error))
            self._disconnect()
            with self._changed:
                self._look_at, self._rest_until = 0.0, time.monotonic() + RETRY_SECONDS
            return
        self._tell(endings)
        self._looked(started)

    def _looked(self, started: float) -> None:
        """A sender leaves out hints that closely follow another: so there is a second look some time after a hint."""
        with self._changed:
            now = self._used_at = time.monotonic()
            self._rest_until = now + (now - started) * (1 / MOST_LOOKING_SHARE - 1)
            if self._hint_at + LOOK_AGAIN_SECONDS > started:
                self._look_at = min(self._look_at, self._hint_at + LOOK_AGAIN_SECONDS)

    def _tell(self, endings: dict[UUID, Ending]) -> None:
        with self._changed:
            told = [(waiter, ending) for id_, ending in endings.items() for waiter in self._waiters.get(id_, ())]
        for waiter, ending in told:
            try:
                waiter.tell(ending)
            except Exception as error:  # its event loop is closed
                logger.warning(
                    "Somebody who waited for chain %s could not be told: %s", waiter.chain_id, log_text(error)
                )

    @property
    def _is_connected(self) -> bool:
        """Of this thread."""
        return connections[self._using].connection is not None

    def _disconnect(self) -> None:
        with suppress(Exception):  # it broke: it is closed then
            connections[self._using].close()


def _is_id_of(subject: str, chain_ids: dict[UUID, Any]) -> bool:
    try:
        return UUID(subject) in chain_ids
    except ValueError:
        return False


_watches: dict[str, Watch] = {}
_lock = threading.Lock()


def get_watch(using: str) -> Watch:
    """The one watch of a database alias in this process."""
    with _lock:
        return _watches.setdefault(using, Watch(using))


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _watches.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
