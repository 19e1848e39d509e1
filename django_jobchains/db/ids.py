"""Creates ids, and finds the id of what a caller passes.

New ids are time-ordered UUIDs (version 7), so new rows land at the end of every index instead of all over it.
"""

import os
import threading
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Generic
from uuid import UUID

from django_jobchains.payloads.types import OutputT_co

_lock = threading.Lock()
_last = 0


class ChainPart(Generic[OutputT_co]):
    """A row that stands for its chain wherever the id of a chain is expected: a ``Chain`` or a ``Job``.

    ``OutputT_co`` is what the chain returns.
    """

    chain_id: UUID


#: What every public call accepts where it expects the id of one chain, and where it expects several.
ChainRef = UUID | str | ChainPart
ChainRefs = ChainRef | Iterable[ChainRef]


def chain_id_of(given: ChainRef, argument: str = "chain_id") -> UUID:
    """Return the id of the chain that a UUID, its string, a ``Chain`` or a ``Job`` stands for.

    Raises ``TypeError`` or ``ValueError``, which names the argument, for anything else. Every public call checks its
    ids here first, so that a wrong one affects that call only.
    """
    return checked_id(given.chain_id if isinstance(given, ChainPart) else given, argument)


def chain_ids_of(given: ChainRefs, argument: str = "chain_ids") -> tuple[UUID, ...]:
    """Return the ids of the chains that one or several values stand for, in order. Raises as ``chain_id_of``."""
    return tuple(chain_id_of(part, argument) for part in as_list(given))


def as_list(given: Any) -> list[Any]:
    """Return the members of an iterable, or the value itself as the only member. A string is one value."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else [given]


def checked_id(given: object, argument: str, expected: str = "a uuid.UUID, its string, a Chain or a Job") -> UUID:
    """Return the id that is a ``UUID`` or its canonical string, as in JSON, in a session, or of a webhook.

    Raises ``TypeError`` for another type, and ``ValueError`` for another string. ``expected``: for these errors.
    """
    if isinstance(given, UUID):
        return given
    if not isinstance(given, str):
        raise TypeError(f"{argument} expects {expected}, not {type(given).__name__}.")
    try:
        found = UUID(given)
    except ValueError:
        found = None
    if found is None or str(found) != given.lower():
        raise ValueError(f"{argument}={given[:50]!r} is not an id. Pass {expected}.")
    return found


def new_id() -> UUID:
    """Return a UUIDv7 that sorts after every id that this process has created, even within one microsecond.

    48 bits of milliseconds, then 12 bits that hold the microseconds or count up from the previous id, then 62 random
    bits (RFC 9562, method 3).
    """
    global _last
    stamp = time.time_ns() * 512 // 125_000  # in units of 1/4096 ms
    with _lock:
        stamp = _last = max(stamp, _last + 1)
    random = int.from_bytes(os.urandom(8), "big") >> 2
    return UUID(int=(stamp >> 12 << 16 | 0x7 << 12 | stamp & 0xFFF) << 64 | 0b10 << 62 | random)


def first_id_at(time: datetime) -> UUID:
    """Return the lowest id that a moment can have. All ids created before it are lower."""
    return UUID(int=max(0, int(time.timestamp() * 1000)) << 80)


def milliseconds_of(id: UUID) -> int:
    """Return when a time-ordered id was created, in milliseconds since 1970."""
    return id.int >> 80


def _new_lock_after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock_after_fork)
