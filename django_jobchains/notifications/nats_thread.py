"""The thread that keeps a connection to NATS: connects, serves while it lasts, and connects again."""

import asyncio
import contextvars
import random
import socket
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.errors import NoServersError, SlowConsumerError

from django_jobchains.notifications.base import WARN_SECONDS
from django_jobchains.notifications.hints import Hint
from django_jobchains.notifications.listening import FIRST_RETRY_SECONDS
from django_jobchains.texts import log_text

if TYPE_CHECKING:
    from django_jobchains.notifications.nats_connection import NatsConnection

logger = getLogger("django_jobchains")

#: For a server to take a connection.
CONNECT_SECONDS = 3
LAST_RETRY_SECONDS = 5.0
#: Between looks at what listeners want to hear.
TICK_SECONDS = 0.2
#: Between questions whether the server is there, and for its answer. A dead network is noticed in the sum of them.
PROBE_SECONDS = 4.0
ANSWER_SECONDS = 4.0
#: What is sent may be so far ahead of what the network takes. At four times as much the driver would wait, and could
#: not be called off.
MOST_PENDING_BYTES = 512 * 1024
#: For a wake budget. Whoever asks can look for itself meanwhile.
TAKE_SECONDS = 0.2
#: For what was sent to reach the server, when the process ends or the notifier is closed.
FLUSH_SECONDS = 1.0
#: For the thread to end.
STOP_SECONDS = 1.0

_OPTIONS: dict[str, Any] = {
    "name": "django_jobchains",
    # Reconnecting is done here: the driver gives up for ever when it is refused once, and waits for what a dead network
    # does not take. It is not forbidden to: else it would not close what it lost.
    "max_reconnect_attempts": 1,
    "reconnect_time_wait": 1,
    "connect_timeout": CONNECT_SECONDS,
    # So is probing.
    "ping_interval": 24 * 3600,
}


class ConnectionLost(Exception):
    """The server closed it, or does not answer."""


class NatsThread:
    """An event loop that connects, serves the connection while it lasts, and connects again, until it is stopped."""

    def __init__(self, connection: "NatsConnection") -> None:
        self.is_connected = False
        self._connection = connection
        self._runner = asyncio.Runner(loop_factory=_Loop)
        self._loop: _Loop = self._runner.get_loop()  # type: ignore[assignment]
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._flushes: deque[threading.Event] = deque()
        self._failures = 0
        self._warn_at = 0.0
        self._error: Exception | None = None
        self._denied: Exception | None = None
        self._thread = threading.Thread(target=self._main, name=connection.name, daemon=True)
        self._thread.start()

    # From any thread

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wake(self) -> None:
        self._call(self._awake.set)

    def flush(self) -> None:
        flushed = threading.Event()
        self._flushes.append(flushed)
        self.wake()
        flushed.wait(FLUSH_SECONDS)

    def take(self, hint: Hint, most: int, group: str) -> int | None:
        asking = self._connection.budgets.take(hint, most, group)
        try:
            future = asyncio.run_coroutine_threadsafe(asking, self._loop)
        except RuntimeError:  # the loop has ended
            asking.close()
            return None
        try:
            return future.result(TAKE_SECONDS)
        except Exception as error:
            future.cancel()
            logger.debug("NATS: a wake budget is not known: %s", log_text(error))
            return None

    def stop(self) -> None:
        self._is_stopping = True
        self._call(self._cancel)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)

    def _call(self, function: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    # In its own

    def _cancel(self) -> None:
        self._awake.set()
        if self._task:
            self._task.cancel()

    def _main(self) -> None:
        with self._runner, suppress(asyncio.CancelledError):
            self._runner.run(self._live(), context=contextvars.Context())

    async def _live(self) -> None:
        self._task = asyncio.current_task()
        while not self._is_stopping:
            try:
                await self._connect_and_serve()
            except Exception as error:  # a thread that dies silently is the worst of failures
                self._report(error)
                await asyncio.sleep(self._pause())

    async def _connect_and_serve(self) -> None:
        client = Client()
        self._error = self._denied = None
        budgets: asyncio.Task[None] | None = None
        try:
            await client.connect(
                **self._connection.options,
                **_OPTIONS,
                error_cb=self._on_error,
                disconnected_cb=self._on_lost,
            )
            self.is_connected = True
            budgets = asyncio.create_task(self._connection.budgets.keep(client))
            await self._serve(client)
        except Exception:
            self._loop.abort_connections()
            raise
        finally:
            self._disconnected(client)
            if budgets is not None:
                budgets.cancel()
            await self._close(client)

    async def _serve(self, client: Client) -> None:
        probe_at = time.monotonic() + PROBE_SECONDS
        while client.is_connected and not self._is_stopping:
            self._awake.clear()
            is_due = time.monotonic() >= probe_at
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._step(client, is_due)
            except TimeoutError:
                raise ConnectionLost("the server does not answer") from None
            if client.is_connected:
                self._served()
            if is_due:
                probe_at = time.monotonic() + PROBE_SECONDS
            await self._wait(TICK_SECONDS if self._connection.listeners else PROBE_SECONDS)
        if not self._is_stopping:
            raise ConnectionLost("the server is gone")

    async def _step(self, client: Client, is_due: bool) -> None:
        for subject, message in self._connection.waiting():
            await client.publish(subject, message)
        if client.pending_data_size > MOST_PENDING_BYTES:
            await settle(client)
        for listener in (*self._connection.left(), *self._connection.listeners):
            await listener.follow(client)
        flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
        if is_due or flushes:
            await settle(client)
        for flushed in flushes:
            flushed.set()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._awake.wait()

    def _served(self) -> None:
        if self._failures:
            logger.info("NATS can be used again, after %d failures", self._failures)
        self._failures = 0

    def _disconnected(self, client: Client) -> None:
        self.is_connected = False
        for listener in (*self._connection.left(), *self._connection.listeners):
            listener.lost(client)

    async def _close(self, client: Client) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS / 2):
                await client.close()
        except Exception as error:  # it was broken already, or never was one
            logger.debug("NATS: a connection did not close well: %s", log_text(error))
        finally:
            self._loop.abort_connections()

    async def _on_lost(self) -> None:
        self._awake.set()

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            for listener in self._connection.listeners:
                listener.look(listener.kinds)
            return
        text = str(error).lower()
        if "permissions violation for subscription" in text and "_inbox" not in text:
            self._denied = error
        elif "permissions violation" in text:
            self._warn("NATS does not let this user do what wake-ups need: %s", log_text(error))
        elif self._error is None or not isinstance(error, OSError):  # what the server says tells more
            self._error = error

    def raise_denied(self) -> None:
        if self._denied:
            raise self._denied

    def _report(self, error: Exception) -> None:
        if self._error and isinstance(error, NoServersError | ConnectionLost):
            error = self._error  # the reason
        self._failures += 1
        text = "NATS cannot be used (%d failures in a row), workers poll meanwhile: %s"
        self._warn(text, self._failures, log_text(error))

    def _warn(self, text: str, *arguments: object) -> None:
        """Once in a while."""
        now = time.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + WARN_SECONDS
            logger.warning(text, *arguments)

    def _pause(self) -> float:
        wait = min(FIRST_RETRY_SECONDS * 2.0 ** min(self._failures, 10), LAST_RETRY_SECONDS)
        return wait * random.uniform(0.5, 1)  # noqa: S311 - jitter


async def settle(client: Client) -> None:
    """Waits until the server has done all it was told. The driver's PING overtakes what it still keeps in its buffer;
    a second one does not."""
    await client.flush()
    await client.flush()


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._opened: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Here, not in a thread of an executor, which takes no more work while the interpreter ends."""
        return socket.getaddrinfo(host, port, **options)

    async def create_connection(self, *arguments: Any, **options: Any) -> Any:
        transport, protocol = await super().create_connection(*arguments, **options)
        self._opened.add(transport)
        return transport, protocol

    def abort_connections(self) -> None:
        """Without waiting, as the driver would, until a network that may be dead has taken what is written."""
        for transport in self._opened:
            transport.abort()
