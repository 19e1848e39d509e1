"""Tickets: a child begins a call only with its ticket, so that a call can be withdrawn until it begins.

A child process gets several short calls in one message, which saves both processes most of the work. If one of them
takes long, the caller withdraws the calls behind it.
"""

import os
import struct
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from django_jobchains.children.frames import Message

_ID = struct.Struct("!Q")
#: How many bytes are read at once.
_READ_BYTES = 65536


class Tickets(Protocol):
    def add(self, ids: Collection[int]) -> None:
        """Let the child begin the calls with these ids, in this order. Raises ``ValueError`` if they are too many."""

    def take(self) -> int | None:
        """Return the id of the next call to begin, or None if there is none. Called by the child."""

    def withdraw(self) -> set[int]:
        """Return the ids of the calls that the child has not begun, and will not begin."""


class TicketPipe:
    """Tickets in a pipe that the caller and the child read: the kernel decides who gets one.

    So a call can be withdrawn even while the child runs C code that holds the GIL. Without ``writer``, it is the
    child's end.
    """

    def __init__(self, reader: int, writer: int | None = None) -> None:
        self.reader = reader
        self._writer = writer
        os.set_blocking(reader, False)
        if writer is not None:
            os.set_blocking(writer, False)

    def add(self, ids: Collection[int]) -> None:
        if self._writer is None:
            return
        count = os.write(self._writer, b"".join(map(_ID.pack, ids))) // _ID.size
        if count < len(ids):  # The pipe is full. The child has not got the calls, so it takes no ticket.
            self.withdraw()
            raise ValueError(f"{len(ids)} calls are too many to start at once: start at most {count}.")

    def take(self) -> int | None:
        with suppress(BlockingIOError):
            if ticket := os.read(self.reader, _ID.size):
                return int(_ID.unpack(ticket)[0])
        return None

    def withdraw(self) -> set[int]:
        withdrawn: set[int] = set()
        with suppress(OSError):  # There is no ticket left, or the pipe is closed.
            while tickets := os.read(self.reader, _READ_BYTES):
                withdrawn.update(number for (number,) in _ID.iter_unpack(tickets))
        return withdrawn

    def close(self) -> None:
        os.close(self.reader)
        if self._writer is not None:
            os.close(self._writer)
        self.reader = self._writer = -1


class LocalTickets:
    """Tickets for a thread of this process that replaces a child."""

    def __init__(self) -> None:
        self._ids: deque[int] = deque()

    def add(self, ids: Collection[int]) -> None:
        self._ids.extend(ids)

    def take(self) -> int | None:
        with suppress(IndexError):
            return self._ids.popleft()
        return None

    def withdraw(self) -> set[int]:
        return set(iter(self.take, None))


class Request(NamedTuple):
    """A call that a child runs."""

    id: int
    target: str
    payload: Any
    cpu_seconds: float | None


def requests_of(messages: Iterable[Message], tickets: Tickets) -> Iterator[Request]:
    """Yield the calls in the messages of the caller, each when it is to begin, without those that were withdrawn."""
    ticket: int | None = None
    for message in messages:
        for number, payload in message["calls"]:
            # The ticket may belong to a later call, if earlier calls were withdrawn.
            ticket = tickets.take() if ticket is None else ticket
            if ticket == number:
                ticket = None
                yield Request(number, message["target"], payload, message["cpu_seconds"])
