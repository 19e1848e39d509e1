"""Messages between processes: JSON, each after its length in four bytes. Nothing is ever unpickled."""

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct("!I")
#: The largest length that fits into the bytes for it.
MAX_BYTES = 2**32 - 1
#: Room for the error of a function, whose texts are cut, next to a result of any limit.
ERROR_BYTES = 2 * 1024**2
#: How much is read at once.
CHUNK_BYTES = 256 * 1024
_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_decoder = json.JSONDecoder()


class MessageTooLarge(ValueError):
    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"The message has {size:,} bytes as JSON, and the limit is {limit:,}. Pass the path of a file "
                         "or a key instead, or increase message_limit.")  # fmt: skip


def encode_frame(message: Message, limit: int = MAX_BYTES) -> bytes:
    """Return a message as bytes. Raises ``TypeError`` or ``ValueError`` if it is not JSON, or is too large."""
    try:
        body = _encoder.encode(message).encode()
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
            yield _message_of(body)


def _message_of(body: str) -> Message:
    try:
        message = _decoder.raw_decode(body)[0]
    except RecursionError:
        raise ValueError("It is nested too deeply.") from None
    if not isinstance(message, dict):
        raise ValueError("It is not an object.")  # noqa: TRY004 - bytes of a wrong value, not a wrong argument
    return message


class SendBuffer:
    """Bytes that a non-blocking socket has not taken yet."""

    def __init__(self, send: Callable[[bytearray], int]) -> None:
        self._send = send
        self._unsent = bytearray()

    def __bool__(self) -> bool:
        return bool(self._unsent)

    def add(self, data: bytes) -> None:
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Send as much as possible without blocking."""
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self._send(self._unsent)]
