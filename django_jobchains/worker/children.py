"""A worker process of the supervisor, seen from the supervisor."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

from django_jobchains.worker.health import Health
from django_jobchains.worker.tether import HURRY, RETIRE, VARIABLE

#: More than a report ever has: a child that sends so much without an end of line is not listened to any more.
MOST_BYTES = 1024 * 1024


class Child:
    """Starts as the same command line as this process, in a fresh interpreter: a fork would copy threads and locks.

    It has its own session, so that Ctrl-C in a terminal reaches the supervisor alone, and its own process group, so
    that ``kill_overdue`` also kills what its handlers started. Raises ``OSError`` when it cannot be started.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.started_at = self.heard_at = time.monotonic()
        self.health: Health | None = None
        #: Why it asks to be replaced.
        self.wish = ""
        #: Whether it reached its database.
        self.has_begun = False
        #: Whether its end of the line is open.
        self.is_heard = True
        self._kill_at: float | None = None
        self._unread = b""
        self.line, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = self._start(theirs.fileno())
        except BaseException:
            self.line.close()
            raise
        self.line.setblocking(False)

    def _start(self, descriptor: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603 - our own command line
            [sys.executable, *sys.orig_argv[1:]],
            env={**os.environ, VARIABLE: f"{descriptor}:{self.number}"},
            pass_fds=[descriptor],
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """None while it runs; a negative one is the signal that killed it."""
        return self._process.poll()

    @property
    def has_ended_well(self) -> bool:
        """SIGTERM kills only before the worker began, or after it ended: while it works it has a handler for it."""
        return self.code == 0 or (self._kill_at is not None and self.code == -signal.SIGTERM)

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self.started_at

    @property
    def silent_seconds(self) -> float:
        """For how long nothing was heard of it."""
        return time.monotonic() - self.heard_at

    def listen(self) -> None:
        """Takes what it reported."""
        try:
            while part := self.line.recv(65536):
                self._unread += part
            self.is_heard = False
        except BlockingIOError:  # that was all
            pass
        except OSError:
            self.is_heard = False
        *lines, self._unread = self._unread[:MOST_BYTES].split(b"\n")
        for line in lines[-1:]:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            report = json.loads(line)
            health, wish, has_begun = Health.from_json(report["health"]), str(report["wish"]), bool(report["has_begun"])
        except (ValueError, KeyError, TypeError):  # user code in the child wrote to a descriptor that is not its own
            return
        self.health, self.wish = health, wish
        self.has_begun |= has_begun
        self.heard_at = time.monotonic()

    def retire(self) -> None:
        """Lets it end when what it runs has ended, however long that takes."""
        self._send(RETIRE)

    def terminate(self, seconds: float) -> None:
        """SIGTERM, however often it had one: it lets its handlers end. ``kill_overdue`` kills it after the seconds."""
        self._kill_after(seconds)
        self._process.terminate()

    def hurry(self, seconds: float) -> None:
        """After ``terminate``: it does not wait for its handlers any more."""
        self._kill_after(seconds)
        self._send(HURRY)

    def _send(self, word: bytes) -> None:
        with suppress(OSError):  # it has ended
            self.line.send(word)

    def _kill_after(self, seconds: float) -> None:
        kill_at = time.monotonic() + seconds
        self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)

    def kill_overdue(self) -> None:
        if self.code is None and self._kill_at is not None and time.monotonic() >= self._kill_at:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # its group: what its handlers started, too

    def close(self) -> None:
        """After its end."""
        self.line.close()
