"""A thread of this process that replaces a child process that could not start."""

import os
import queue
import signal
import threading
from collections import deque
from contextlib import suppress

from django_jobchains.children.call_loop import CallLoop, close_connections
from django_jobchains.children.frames import FrameBuffer, Message, encode_frame
from django_jobchains.children.limits import resident_bytes
from django_jobchains.exceptions import ChildCrashed
from django_jobchains.handlers.abort_signal import AbortReason
from django_jobchains.isolation import Level


class ChildThread:
    """Runs functions on a daemon thread, with the methods of ``ChildProcess``.

    A thread cannot be killed: ``kill`` only stops waiting for it.
    """

    level: Level = "thread"

    def __init__(self, message_limit: int) -> None:
        self.pid = os.getpid()
        self._frames = FrameBuffer()
        self._received: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._loop = CallLoop(self._write, message_limit)
        self._is_killed = False
        self._tickets: deque[int] = deque()
        self._thread = threading.Thread(target=self._run, name="jobchains-pool-thread", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._is_killed

    @property
    def rss(self) -> int:
        return resident_bytes()

    def send(self, message: Message) -> None:
        # Encoded and decoded, so that the function gets a copy, as it would in another process.
        request = {**message, "cpu_seconds": None}
        for copy in FrameBuffer().add(encode_frame(request)):
            self._tickets.extend(number for number, _ in copy["calls"])
            self._requests.put(copy)

    def withdraw(self) -> set[int]:
        return set(iter(self._take_ticket, None))

    def _take_ticket(self) -> int | None:
        with suppress(IndexError):
            return self._tickets.popleft()
        return None

    def abort(self, id: int, reason: AbortReason, part: str | None) -> None:
        self._loop.abort(id, reason, part)

    def receive(self, timeout: float | None) -> Message | None:
        try:
            message = self._received.get(timeout=timeout)
        except queue.Empty:
            return None
        if message is None:
            self._received.put(None)  # for a later wait
            raise ChildCrashed(-signal.SIGKILL, "The thread that replaced a child process was abandoned.")
        return message

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        self._is_killed = True
        self._requests.put(None)
        self._received.put(None)

    def end(self) -> None:
        self._requests.put(None)

    def _write(self, data: bytes) -> None:
        for message in self._frames.add(data):
            self._received.put(message)

    def _run(self) -> None:
        try:
            self._loop.run(iter(self._requests.get, None), self._take_ticket)
        finally:
            close_connections()
