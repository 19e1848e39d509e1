"""The threads that keep a connection to NATS and pass on its hints, and the hints that wait to be sent over it."""

import asyncio
import contextvars
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from logging import getLogger
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import NoServersError, SlowConsumerError

from django_jobchains.notifications.base import CLOSE_SECONDS, Listener, Subscribers, WarningThrottle, retry_pause
from django_jobchains.notifications.hints import Hint, HintKind, add_counts, decode, encode
from django_jobchains.notifications.nats.budgets import WakeBudgets
from django_jobchains.telemetry import observes, report
from django_jobchains.telemetry.events import NotifierConnected, NotifierFailed
from django_jobchains.text.errors import log_text

logger = getLogger("django_jobchains")

#: How long a server may take to accept a connection.
CONNECT_SECONDS = 3
MAX_RETRY_SECONDS = 5.0
#: How often the thread checks which kinds of hints are wanted.
TICK_SECONDS = 0.2
#: How often the thread asks the server for a response, and how long it waits for one. A dead network is detected within
#: the sum of both.
PROBE_SECONDS = 4.0
ANSWER_SECONDS = 4.0
#: How much may be sent before the network has taken it. At four times as much, the driver would wait, and could not be
#: cancelled.
MAX_PENDING_BYTES = 512 * 1024
#: How long a caller waits for a wake budget.
TAKE_SECONDS = 0.2
#: How long the end of the process, or closing the notifier, waits for the server to receive what was sent.
FLUSH_SECONDS = 1.0
#: How long stopping waits for the thread to end.
STOP_SECONDS = 1.0
#: Hints that wait to be sent or to be passed on. If there are more, they are dropped, or subscribers resync instead.
MAX_WAITING = 1_000
#: What the driver may hold during a flood. The rest is dropped.
MAX_MESSAGES, MAX_BYTES = 4_096, 1_024 * 1_024

_OPTIONS: dict[str, Any] = {
    "name": "django_jobchains",
    # This module reconnects: the driver gives up forever after one refusal, and waits for what a dead network does not
    # take. It is allowed one attempt, because otherwise it would not close a lost connection.
    "max_reconnect_attempts": 1,
    "reconnect_time_wait": 1,
    "connect_timeout": CONNECT_SECONDS,
    # This module probes, too.
    "ping_interval": 24 * 3600,
}


class NatsConnectionLost(Exception):
    """The server has closed the connection, or does not respond."""


class NatsThread:
    """Sends the hints of the outbox and keeps the subscriptions of its listeners, until it is stopped."""

    def __init__(self, name: str, options: Mapping[str, Any], outbox: "Outbox", budgets: WakeBudgets) -> None:
        self.is_connected = False
        self._options = options
        self._outbox = outbox
        self._budgets = budgets
        self._listeners: list[NatsListener] = []
        self._runner = asyncio.Runner(loop_factory=_Loop)
        self._loop: _Loop = self._runner.get_loop()  # type: ignore[assignment]
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._flushes: deque[threading.Event] = deque()
        self._failures = 0
        self._throttle = WarningThrottle()
        self._error: Exception | None = None
        self._denied: Exception | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    # Called from any thread

    @property
    def has_listeners(self) -> bool:
        return any(not listener.is_closed for listener in tuple(self._listeners))

    def add(self, listener: "NatsListener") -> None:
        self._listeners.append(listener)

    def wake(self) -> None:
        self._call(self._awake.set)

    def flush(self) -> None:
        flushed = threading.Event()
        self._flushes.append(flushed)
        self.wake()
        flushed.wait(FLUSH_SECONDS)

    def take(self, hint: Hint, limit: int, group: str) -> int | None:
        taking = self._budgets.take(hint, limit, group)
        try:
            future = asyncio.run_coroutine_threadsafe(taking, self._loop)
        except RuntimeError:  # the loop has ended
            taking.close()
            return None
        try:
            return future.result(TAKE_SECONDS)
        except Exception as error:
            future.cancel()
            logger.debug("NATS: the wake budget is unknown: %s", log_text(error))
            return None

    def stop(self) -> None:
        self._is_stopping = True
        self._call(self._cancel)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)

    def _call(self, function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    # Called in this thread

    def _cancel(self) -> None:
        self._awake.set()
        if self._task:
            self._task.cancel()

    def _main(self) -> None:
        with self._runner, suppress(asyncio.CancelledError):
            self._runner.run(self._run(), context=contextvars.Context())

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        while not self._is_stopping:
            try:
                await self._connect_and_serve()
            except Exception as error:  # the thread must never end silently
                self._report(error)
                await asyncio.sleep(retry_pause(self._failures, MAX_RETRY_SECONDS))

    async def _connect_and_serve(self) -> None:
        client = Client()
        self._error = self._denied = None
        budgets: asyncio.Task[None] | None = None
        try:
            connecting = client.connect(
                **self._options, **_OPTIONS, error_cb=self._on_error, disconnected_cb=self._on_disconnected
            )
            await within(3 * CONNECT_SECONDS, connecting)
            self.is_connected = True
            if observes(NotifierConnected):
                report(NotifierConnected("", type(self).__name__))
            budgets = asyncio.create_task(self._budgets.keep(client))
            await self._serve(client)
        except Exception:
            self._loop.abort_connections()
            raise
        finally:
            self._lose(client)
            if budgets is not None:
                budgets.cancel()
            await self._close(client)

    async def _serve(self, client: Client) -> None:
        probe_at = time.monotonic() + PROBE_SECONDS
        while client.is_connected and not self._is_stopping:
            self._awake.clear()
            is_probe_due = time.monotonic() >= probe_at
            await within(ANSWER_SECONDS, self._step(client, is_probe_due=is_probe_due))
            if client.is_connected:
                if self._failures:
                    logger.info("NATS can be used again, after %d failures", self._failures)
                self._failures = 0
            if is_probe_due:
                probe_at = time.monotonic() + PROBE_SECONDS
            await self._wait(TICK_SECONDS if self._listeners else PROBE_SECONDS)
        if not self._is_stopping:
            raise NatsConnectionLost("the server has closed the connection")

    async def _step(self, client: Client, *, is_probe_due: bool) -> None:
        for subject, message in self._outbox.take():
            await client.publish(subject, message)
        if client.pending_data_size > MAX_PENDING_BYTES:
            await round_trip(client)
        for listener in tuple(self._listeners):
            await self._update(listener, client)
        flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
        if is_probe_due or flushes:
            await round_trip(client)
        for flushed in flushes:
            flushed.set()

    async def _update(self, listener: "NatsListener", client: Client) -> None:
        # Read first: a listener that is closed after this unsubscribes in the next step.
        is_closed = listener.is_closed
        if await listener.subscribe(client):
            await round_trip(client)  # now the server has processed the subscriptions, or has refused them
            if self._denied:
                raise self._denied
            listener.confirm()
        if is_closed:
            self._listeners.remove(listener)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._awake.wait()

    def _lose(self, client: Client) -> None:
        self.is_connected = False
        for listener in tuple(self._listeners):
            listener.lost(client)

    async def _close(self, client: Client) -> None:
        try:
            await within(STOP_SECONDS / 2, client.close())
        except Exception as error:  # the connection was broken, or never opened
            logger.debug("NATS: closing a connection failed: %s", log_text(error))
        finally:
            self._loop.abort_connections()

    async def _on_disconnected(self) -> None:
        self._awake.set()

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            for listener in tuple(self._listeners):
                listener.resync(listener.kinds)
            return
        text = str(error).lower()
        if "permissions violation for subscription" in text and "_inbox" not in text:
            self._denied = error
        elif "permissions violation" in text:
            self._warn("NATS does not permit this user what wake-ups need: %s", log_text(error))
        elif self._error is None or not isinstance(error, OSError):  # the server's own messages are more useful
            self._error = error

    def _report(self, error: Exception) -> None:
        if self._error and isinstance(error, NoServersError | NatsConnectionLost):
            error = self._error  # the cause
        self._failures += 1
        text = "NATS cannot be used (%d failures in a row), workers poll in the meantime: %s"
        self._warn(text, self._failures, log_text(error))
        if observes(NotifierFailed):
            report(NotifierFailed("", type(self).__name__, log_text(error), self._failures))

    def _warn(self, text: str, *arguments: object) -> None:
        if self._throttle.allows():
            logger.warning(text, *arguments)


class NatsListener(Listener):
    """A listener. The connection's thread calls ``subscribe``, ``confirm`` and ``lost``."""

    kinds = frozenset()

    def __init__(
        self,
        name: str,
        subjects: Mapping[HintKind, str],
        subscribers: Subscribers,
        on_closed: Callable[[], None],
    ) -> None:
        self.is_closed = False
        self._subjects = subjects
        self._kinds = {subject: kind for kind, subject in subjects.items()}
        self._subscribers = subscribers
        self._on_closed = on_closed
        self._client: Client | None = None
        self._unconfirmed: dict[HintKind, Subscription] = {}
        self._subscribed: dict[HintKind, Subscription] = {}
        self._changed = threading.Condition()
        self._waiting: deque[Hint] = deque()
        self._missed: frozenset[HintKind] = frozenset()
        self._thread = threading.Thread(target=self._pass_on, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return bool(self._subscribed) and self._thread.is_alive()

    def close(self) -> None:
        with self._changed:
            self.is_closed = True
            self._changed.notify()
        self._on_closed()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)

    async def subscribe(self, client: Client) -> bool:
        """Subscribe to the kinds that subscribers want now. Return True if there are new ones to ``confirm``."""
        if client is not self._client:
            self._client, self._subscribed, self.kinds = client, {}, frozenset()
        wanted = frozenset[HintKind]() if self.is_closed else self._subscribers.kinds
        for kind in self._subscribed.keys() - wanted:
            await self._subscribed.pop(kind).unsubscribe()
        self.kinds &= wanted
        new = sorted(wanted - self._subscribed.keys())
        self._unconfirmed = {kind: await self._subscribe(client, kind) for kind in new}
        return bool(new)

    def confirm(self) -> None:
        """Mark the subscriptions as confirmed: the server has processed them, so hints arrive from now on."""
        new, self._unconfirmed = self._unconfirmed, {}
        self._subscribed.update(new)
        self.kinds = frozenset(self._subscribed)
        self.resync(new)

    def lost(self, client: Client) -> None:
        """Forget the subscriptions, which ended with the connection."""
        if client is self._client:
            self._subscribed = {}
            self.kinds = frozenset()

    def resync(self, kinds: Collection[HintKind]) -> None:
        """Let subscribers query, because hints of these kinds may have been missed."""
        with self._changed:
            self._missed |= frozenset(kinds)
            self._changed.notify()

    async def _subscribe(self, client: Client, kind: HintKind) -> Subscription:
        return await client.subscribe(
            self._subjects[kind], cb=self._receive, pending_msgs_limit=MAX_MESSAGES, pending_bytes_limit=MAX_BYTES
        )

    async def _receive(self, message: Msg) -> None:
        """Keep the hint of a message. Drop anything else, because any client of the server may publish."""
        if hint := decode(self._kinds[message.subject], message.data):
            with self._changed:
                if len(self._waiting) >= MAX_WAITING:
                    self._missed |= {waiting.kind for waiting in (*self._waiting, hint)}
                    self._waiting.clear()
                else:
                    self._waiting.append(hint)
                self._changed.notify()

    def _pass_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._missed or self.is_closed)
                missed, self._missed = self._missed, frozenset()
                hint = self._waiting.popleft() if self._waiting else None
            if self.is_closed:
                return
            self._subscribers.resync(missed)
            if hint:
                self._subscribers(hint)


class Outbox:
    """Keeps hints until they are sent. May be used from any thread.

    Hints with the same kind and subject are merged, so that the server may be unavailable for long.
    """

    def __init__(self, subjects: Mapping[HintKind, str]) -> None:
        self._subjects = subjects
        self._lock = threading.Lock()
        self._waiting: dict[Hint, Hint] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, hints: Collection[Hint]) -> int:
        """Keep hints, and return how many were dropped instead."""
        dropped = 0
        with self._lock:
            for given in hints:
                hint = given
                if waiting := self._waiting.pop(given, None):
                    count = add_counts(waiting.count, given.count)
                    hint = replace(given, count=count, id="" if count is None else given.id)
                elif len(self._waiting) >= MAX_WAITING:
                    dropped += 1
                    continue
                self._waiting[hint] = hint
        return dropped

    def take(self) -> list[tuple[str, bytes]]:
        """Remove all hints and return their subjects and messages. They may get lost with their connection."""
        with self._lock:
            hints, self._waiting = list(self._waiting), {}
        return [(self._subjects[hint.kind], encode(hint).encode(errors="replace")) for hint in hints]


async def within(seconds: float, driver: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine of the driver, which may not end when it is cancelled, or may be cancelled by the driver itself.

    Raises NatsConnectionLost after this time, or if it was cancelled.
    """
    task = asyncio.create_task(driver)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done() or task.cancelled():
            raise NatsConnectionLost("the server does not respond")
    finally:
        task.cancel()
    task.result()


async def round_trip(client: Client) -> None:
    """Wait until the server has processed everything that was sent.

    The driver's PING overtakes what is still in its buffer. A second one does not.
    """
    await client.flush()
    await client.flush()


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._opened: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Resolve in this thread: an executor accepts no more work while the interpreter shuts down."""
        return socket.getaddrinfo(host, port, **options)

    async def create_connection(self, *arguments: Any, **options: Any) -> Any:
        transport, protocol = await super().create_connection(*arguments, **options)
        self._opened.add(transport)
        return transport, protocol

    def abort_connections(self) -> None:
        """Close all connections without waiting, as the driver would, for a network that may be dead."""
        for transport in self._opened:
            transport.abort()
