"""How a caller and a child talk: messages of JSON on a socket, and tickets in a pipe. Nothing is ever unpickled.

A message follows its length in four bytes. A child process gets several short calls in one message, which saves both
processes most of the work. It begins a call only with the call's ticket, so that a call can be withdrawn until it
begins: if one of them takes long, the caller withdraws the calls behind it.
"""

import json
import os
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from django_jobchains.payloads.strict_json import json_writer

Message = dict[str, Any]

_LENGTH = struct.Struct("!I")
#: The largest length that fits into the bytes for it.
MAX_BYTES = 2**32 - 1
#: Room for the error of a function, whose texts are cut, next to a result of any limit.
ERROR_BYTES = 2 * 1024**2
#: How many bytes are read in one call.
CHUNK_BYTES = 256 * 1024
_write = json_writer(ensure_ascii=True)
_decoder = json.JSONDecoder()

_TICKET = struct.Struct("!Q")
#: How many bytes of tickets are read in one call: the capacity of a pipe.
_TICKETS_BYTES = 65536


class MessageTooLarge(ValueError):
    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"The message has {size:,} bytes as JSON, and the limit is {limit:,}. Pass the path of a file "
                         "or a key instead, or increase message_limit.")  # fmt: skip


def encode_frame(message: Message, limit: int = MAX_BYTES) -> bytes:
    """Return a message as bytes. Raises ``TypeError`` or ``ValueError`` if it is not JSON, or is too large."""
    try:
        body = _write(message).encode()
    except RecursionError:
        raise ValueError("The value is nested too deeply for JSON, or contains itself.") from None
    if len(body) > limit:
        raise MessageTooLarge(len(body), limit)
    return _LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Collects received bytes, and returns the messages that are complete."""

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self._bytes = bytearray()
        self._limit = limit

    def add(self, received: bytes) -> Iterator[Message]:
        """Yield messages. Raises ``ValueError`` if the bytes are not messages, or announce one above the limit."""
        self._bytes += received
        while len(self._bytes) >= _LENGTH.size:
            size = _LENGTH.unpack_from(self._bytes)[0]
            end = _LENGTH.size + size
            if size > self._limit:
                raise MessageTooLarge(size, self._limit)
            if len(self._bytes) < end:
                return
            body = self._bytes[_LENGTH.size : end].decode()
            del self._bytes[:end]
            try:
                message = _decoder.raw_decode(body)[0]
            except RecursionError:
                raise ValueError("It is nested too deeply.") from None
            if not isinstance(message, dict):
                raise ValueError("It is not an object.")  # noqa: TRY004 - bytes of a wrong value, not a wrong argument
            yield message


class TicketPipe:
    """The caller's side of a pipe of tickets. Both processes read it, and the kernel decides who gets a ticket.

    So a call can be withdrawn even while the child runs C code that holds the GIL.
    """

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)

    def add(self, ids: Collection[int]) -> None:
        """Let the child begin the calls with these ids, in this order. Raises ``ValueError`` if they are too many."""
        count = os.write(self._writer, b"".join(map(_TICKET.pack, ids))) // _TICKET.size
        if count < len(ids):  # The pipe is full. The child has not got the calls, so it takes no ticket.
            self.withdraw()
            raise ValueError(f"{len(ids)} calls are too many to start at once: start at most {count}.")

    def withdraw(self) -> set[int]:
        """Return the ids of the calls that the child has not begun, and will not begin."""
        withdrawn: set[int] = set()
        with suppress(OSError):  # There is no ticket left, or the pipe is closed.
            while tickets := os.read(self.reader, _TICKETS_BYTES):
                withdrawn.update(number for (number,) in _TICKET.iter_unpack(tickets))
        return withdrawn

    def close(self) -> None:
        os.close(self.reader)
        os.close(self._writer)
        self.reader = self._writer = -1


def take_ticket(reader: int) -> int | None:
    """Return the id of the next call that the child may begin, or None. ``reader``: its descriptor of the pipe."""
    with suppress(BlockingIOError):
        if ticket := os.read(reader, _TICKET.size):
            return int(_TICKET.unpack(ticket)[0])
    return None
