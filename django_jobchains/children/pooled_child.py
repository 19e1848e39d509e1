"""A child of a pool: how it starts, its calls, and how a call that does not stop is ended."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from logging import getLogger
from types import TracebackType
from typing import Any, Final, Self

from django_jobchains.children.call_loop import ChildThread
from django_jobchains.children.child_process import MAX_START_SECONDS, ChildProcess, PreloadLost
from django_jobchains.children.frames import Message
from django_jobchains.children.limits import limit_problem, start_problem
from django_jobchains.exceptions import (
    ChildCrashed,
    ChildStartFailed,
    ChildTimeout,
    JobAborted,
    PoolClosed,
    RemoteError,
)
from django_jobchains.handlers.abort_signal import AbortReason, AbortSignal, refuse_on_event_loop
from django_jobchains.isolation import Fallback, Isolation, Level, check_target
from django_jobchains.text.errors import log_error
from django_jobchains.values import Duration, DurationLike, timeout_seconds

logger = getLogger("django_jobchains")

#: How long a pool stays at a weaker level before it tries to start child processes again.
PAUSE_SECONDS = 30.0


class _Marker(Enum):
    PENDING = "pending"


#: Returned by ``Call.wait`` when the call has not ended yet.
PENDING: Final = _Marker.PENDING


#: What runs the functions of a child: a process, or after a fallback, a thread of this process.
Peer = ChildProcess | ChildThread


class Call:
    """A call that a child runs. One thread waits for it; the other methods may be called from any thread."""

    def __init__(self, child: "PooledChild", id: int, on_message: Callable[[Any], object] | None = None) -> None:
        self.id = id
        self._child = child
        self._peer = child.peer
        self._on_message = on_message
        self._reply: Message | None = None
        #: Whether the child has died, or the function has returned or raised an error.
        self.is_done = False
        #: Whether the call was withdrawn before the child began it.
        self.is_withdrawn = False

    def wait(self, timeout: DurationLike | None = None) -> Any:
        """Return the result of the function, or ``PENDING`` if it still runs after the ``timeout``.

        Raises ``RemoteError`` with the text of the function's error, ``ChildCrashed`` if the child process died, and
        ``PoolClosed`` if it died because its pool was terminated. Calls ``on_message`` with each value that the
        function sends.
        """
        refuse_on_event_loop("call.wait() would block", "'await pool.arun(…)'")
        seconds = timeout_seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._reply is None:
            message = self._receive(None if deadline is None else max(deadline - time.monotonic(), 0))
            if message is None:
                return PENDING
            if message.get("id") == self.id and "message" not in message:
                self._reply, self.is_done = message, True
            elif message.get("id") == self.id and self._on_message is not None:
                self._on_message(message["message"])
            if not self.is_done and deadline is not None and time.monotonic() > deadline:
                return PENDING  # This also applies if it sends messages all the time.
        if error := self._reply.get("error"):
            raise RemoteError(**error)
        return self._reply["result"]

    def abort(self, reason: AbortReason, part: str | None = None) -> None:
        """Ask the function to stop, by aborting the signal that ``current_signal()`` returns in the child.

        ``part``: abort only the signal that ``RunningCall.part()`` returns for this name.
        """
        self._peer.abort(self.id, reason, part)

    def terminate(self) -> None:
        """Send SIGTERM to the child process, which ends it unless the function has installed a handler.

        After the end of the call, this does nothing, like ``kill``. Both also withdraw the following calls. The child
        is not used again, because the signal may arrive late.
        """
        if self._child.stops_at(self):
            self._peer.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the child process and its process group."""
        if self._child.stops_at(self):
            self._peer.kill()

    def stop(self, grace_seconds: float) -> None:
        """End the child with SIGTERM, or with SIGKILL if it still runs after the grace period. Return after its end."""
        self.terminate()
        self._wait_for_end(grace_seconds)
        self._peer.kill()
        self._wait_for_end(MAX_DYING_SECONDS)

    def _wait_for_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        try:
            while not self.is_done or self._peer.is_alive:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or self._receive(remaining) is None:
                    return
        except (ChildCrashed, PoolClosed):
            return

    def _receive(self, timeout: float | None) -> Message | None:
        try:
            return self._peer.receive(timeout)
        except ChildCrashed as error:
            self.is_done = True
            if self._child.is_closed:
                raise PoolClosed from error
            raise


#: How long a killed process may take to disappear. The kernel lets it finish an operation on a broken disk first.
MAX_DYING_SECONDS = 5.0


class PooledChild:
    """A child process that runs one call after another, from the ``acquire`` of one user until its release.

    The next user of the process gets another ``PooledChild``, so that a late release does not affect the next user.

    If the pool has fallen back to a weaker level, ``level`` is the weaker level, and the calls run in this process.
    """

    def __init__(
        self, peer: Peer, *, key: str, isolation: Isolation, next_request_id: Callable[[], int], jobs: int = 0
    ) -> None:
        self.key = key
        #: The number of calls that were started in the process.
        self.jobs = jobs
        #: Whether its pool was terminated.
        self.is_closed = False
        #: Whether it was asked to end by a signal.
        self.is_signalled = False
        self.is_released = False
        #: Whether its pool has given up the process.
        self.is_ended = False
        #: When it was acquired, or became idle.
        self.since = time.monotonic()
        self.peer = peer
        self._isolation = isolation
        self._next_request_id = next_request_id
        self._lock = threading.RLock()
        #: The calls that were started last, except withdrawn calls.
        self._calls: list[Call] = []

    @property
    def level(self) -> Level:
        return self.peer.level

    @property
    def pid(self) -> int:
        return self.peer.pid

    @property
    def rss(self) -> int:
        """The resident memory of its process, in bytes; 0 if it has ended."""
        return self.peer.rss

    @property
    def is_alive(self) -> bool:
        return self.peer.is_alive

    @property
    def is_busy(self) -> bool:
        """Whether a call has neither returned nor raised."""
        return not all(call.is_done for call in self._calls)

    def run(
        self,
        target: str,
        payload: Any = None,
        *,
        timeout: DurationLike | None = None,
        signal: AbortSignal | None = None,
    ) -> Any:
        """Call a function in the child, and return its result. Payload and result are JSON values.

        ``target``: "module:function", called with the payload. Raises ``RemoteError`` if it raises, ``ChildTimeout``
        after the ``timeout``, ``JobAborted`` if the signal is aborted before or during the call, ``ChildCrashed`` if
        the child process dies, and ``PoolClosed`` if the pool is terminated. After a timeout, the child gets SIGTERM
        immediately, and SIGKILL after the grace period.
        """
        refuse_on_event_loop("child.run() would block", "'await pool.arun(…)'")
        seconds = Duration().check_or("timeout", timeout, None)
        if signal is not None:
            signal.raise_if_aborted()
        call = self.start(target, payload)
        watch = AbortWatch(call, signal, self._isolation.grace_seconds)
        try:
            with watch:
                result = call.wait(seconds)
        except (RemoteError, ChildCrashed) as error:
            if watch.reason:
                raise JobAborted(watch.reason) from error
            raise
        except BaseException:  # The caller was interrupted, and no longer waits for the call.
            call.kill()
            raise
        if result is PENDING:
            call.stop(self._isolation.grace_seconds)
        if watch.reason:
            raise JobAborted(watch.reason)
        if result is PENDING:
            raise ChildTimeout(target, seconds or 0)
        return result

    def start(self, target: str, payload: Any = None, *, on_message: Callable[[Any], object] | None = None) -> Call:
        """Start a call without waiting for it, and without a time limit.

        ``on_message`` is called in the waiting thread, with each JSON value that the function passes to ``send()``.
        """
        return self.start_all(target, [payload], on_message=on_message)[0]

    def start_all(
        self, target: str, payloads: Sequence[Any], *, on_message: Callable[[Any], object] | None = None
    ) -> list[Call]:
        """Start calls that run one after another, with less overhead than single calls, and return them.

        Wait for each of them in turn. If one of them crashes the child or takes long, ``withdraw`` the following calls.
        """
        check_target(target, "target")
        calls = [Call(self, self._next_request_id(), on_message) for _ in payloads]
        requests = [(call.id, payload) for call, payload in zip(calls, payloads, strict=True)]
        with self._lock:
            if self.is_closed:
                raise PoolClosed
            if self.is_released:
                raise RuntimeError("The child was released. Acquire one again, and use what acquire() returns.")
            if self.is_busy:
                raise RuntimeError("The child runs another call. Acquire one child for each call at a time.")
            self.peer.send({"target": target, "cpu_seconds": self._isolation.cpu_seconds, "calls": requests})
            self._calls = calls
            self.jobs += len(calls)
        return calls

    def withdraw(self) -> None:
        """Withdraw the calls that have not begun, which sets their ``is_withdrawn``. The others run, or have ended.

        Can be called from any thread.
        """
        with self._lock:
            withdrawn = set() if self.is_released else self.peer.withdraw()
            for call in self._calls if withdrawn else ():
                call.is_withdrawn = call.id in withdrawn
            self._calls = [call for call in self._calls if not call.is_withdrawn]
            self.jobs -= len(withdrawn)

    # For its calls

    def stops_at(self, call: Call) -> bool:
        """Withdraw the calls after this one. Return whether the child must be ended.

        It must be ended if it runs this call, or has not begun it although no other call runs.
        """
        with self._lock:
            self.withdraw()
            is_current = not self.is_busy if call.is_withdrawn else self._calls[-1:] == [call]
            is_running = not call.is_done and is_current
            self.is_signalled |= is_running
            return is_running

    # For the pool

    def kill(self) -> None:
        """Kill the process, because it sends data that cannot be read. It is not used again."""
        self.is_signalled = True
        self.peer.kill()

    def renewed(self) -> "PooledChild | None":
        """Release the child, and return one with the same process. Return None if it still runs a call."""
        with self._lock:
            if self.is_released or self.is_busy:
                return None
            self.is_released = True
        return PooledChild(
            self.peer, key=self.key, isolation=self._isolation, next_request_id=self._next_request_id, jobs=self.jobs
        )

    def close(self) -> None:
        """Kill the process, because its pool was terminated. Its user still holds the child."""
        self.is_closed = True
        self.peer.kill()

    def end(self) -> bool:
        """Release the child, and let the process end. If it still runs a call, it is killed.

        Return False if it was released before.
        """
        with self._lock:
            if self.is_released:
                return False
            self.is_released = self.is_ended = True
            is_busy = self.is_busy
        if is_busy:
            self.peer.kill()
        self.peer.end()
        return True


class AbortWatch:
    """Inside its block, an abort reaches the call. SIGTERM follows after half of the grace, and SIGKILL at its end."""

    def __init__(self, call: Call, signal: AbortSignal | None, grace_seconds: float) -> None:
        self._call = call
        self._signal = signal
        self._grace_seconds = grace_seconds
        self._lock = threading.Lock()
        self._has_ended = False
        #: Set at the end. It is created by the first abort, because most calls are not aborted.
        self._end: threading.Event | None = None
        #: Why the call was aborted, or None.
        self.reason: AbortReason | None = None

    def __enter__(self) -> Self:
        if self._signal is not None:
            self._signal.listeners.append(self._on_abort)
            if self._signal.aborted:  # Aborted just before the listener was added.
                self._on_abort()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        with self._lock:
            self._has_ended = True
            if self._end is not None:
                self._end.set()
        if self._signal is not None:
            with suppress(ValueError):
                self._signal.listeners.remove(self._on_abort)

    def _on_abort(self) -> None:
        with self._lock:
            if self.reason is not None or self._signal is None or self._has_ended:
                return
            self.reason = self._signal.reason
            end = self._end = threading.Event()
        if self.reason is not None:
            self._call.abort(self.reason)
            threading.Thread(target=self._enforce, args=[end], name="jobchains-abort-watch", daemon=True).start()

    def _enforce(self, end: threading.Event) -> None:
        for stop in (self._call.terminate, self._call.kill):
            end.wait(self._grace_seconds / 2)
            with self._lock:  # The child may run another call as soon as this one has ended.
                if self._has_ended:
                    return
                stop()


class Launcher:
    """Starts children.

    The constructor raises ``ChildStartFailed`` if this operating system does not support a strict isolation.

    ``next_request_id``: numbers the calls of all children. ``imports``: modules that the calls need.
    """

    def __init__(self, isolation: Isolation, next_request_id: Callable[[], int], imports: Sequence[str] = ()) -> None:
        self.isolation = isolation
        self._next_request_id = next_request_id
        self._imports = imports
        self._lock = threading.Lock()
        self._starting: set[ChildProcess] = set()
        self._is_closed = False
        #: Why no child process could start, if threads replace them.
        self.problem = ""
        self._retry_at = 0.0
        if problem := start_problem() or limit_problem(isolation):
            if isolation.strict:
                raise ChildStartFailed(isolation.level, problem)
            logger.warning("Isolation %r is weaker on this system: %s.", isolation.level, problem)

    def launch(self, key: str, deadline: float | None) -> PooledChild | None:
        """Start a child. Return None at the deadline. Raises ``PoolClosed`` after ``close``.

        Raises ``ChildStartFailed`` if the isolation is strict, and no child process can start.
        """
        peer = None
        if not self.problem or self.isolation.strict or time.monotonic() >= self._retry_at:
            try:
                peer = self._child(deadline)
            except ChildStartFailed as error:
                if self._is_closed:
                    raise PoolClosed from error
                if self.isolation.strict:
                    raise
                self.problem = error.reason
                self._retry_at = time.monotonic() + PAUSE_SECONDS
                logger.warning("Functions run without isolation %r for now: %s", self.isolation.level, error.reason)
            else:
                if peer is None:
                    return None
                self.problem = ""
        return PooledChild(
            peer or self._thread(), key=key, isolation=self.isolation, next_request_id=self._next_request_id
        )

    def close(self) -> None:
        """End the children that are being started."""
        with self._lock:
            self._is_closed = True
            starting = list(self._starting)
        for child in starting:
            child.kill()

    def _child(self, deadline: float | None) -> ChildProcess | None:
        """Return a child process that is ready, or None at the deadline."""
        if problem := start_problem():
            raise ChildStartFailed(self.isolation.level, problem)
        try:
            return self._ready_child(deadline)
        except PreloadLost:
            if self._is_closed:
                raise
            return self._ready_child(deadline)  # with another preload process

    def _ready_child(self, deadline: float | None) -> ChildProcess | None:
        child = ChildProcess(self.isolation, self._imports)
        with self._lock:
            self._starting.add(child)
            is_closed = self._is_closed
        is_ready = False
        try:
            if is_closed:
                child.kill()
            seconds = MAX_START_SECONDS if deadline is None else max(deadline - time.monotonic(), 0)
            is_ready = child.wait_until_ready(seconds)
            return child if is_ready else None
        finally:
            if not is_ready:
                child.end()
            with self._lock:
                self._starting.discard(child)

    def _thread(self) -> ChildThread:
        """Fall back to a thread. If a transient child does not start, a reusable child would not start either."""
        if self.isolation.on_fallback is not None:
            try:
                self.isolation.on_fallback(Fallback(self.isolation.level, "thread", self.problem))
            except Exception as error:
                log_error(logger, error, "An on_fallback callback failed: %s")
        return ChildThread(self.isolation.message_limit_bytes)
