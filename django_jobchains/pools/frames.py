"""Messages between processes: JSON, each after its length in four bytes. Nothing is ever unpickled."""

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct("!I")
#: How much is read at once.
CHUNK_BYTES = 256 * 1024
_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_decoder = json.JSONDecoder()


def encode_frame(message: Message) -> bytes:
    """Return a message as bytes. Raises ``TypeError`` or ``ValueError`` if it is not JSON."""
    try:
        body = _encoder.encode(message).encode()
        return _LENGTH.pack(len(body)) + body
    except RecursionError:
        raise ValueError("The value is nested too deeply for JSON, or contains itself.") from None
    except struct.error:
        raise ValueError("The value is larger than 4 GB as JSON. Pass the path of a file, or a key.") from None


class FrameBuffer:
    """Collects received bytes, and returns the messages that are complete."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, received: bytes) -> Iterator[Message]:
        self._bytes += received
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                return
            body = self._bytes[_LENGTH.size : end].decode()
            del self._bytes[:end]
            yield _decoder.raw_decode(body)[0]


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
