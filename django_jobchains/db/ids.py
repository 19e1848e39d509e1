"""Creates ids, and finds the id of what a caller passes.

New ids are time-ordered UUIDs (version 7), so new rows land at the end of every index instead of all over it.
"""

import os
import threading
import time
from array import array
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Generic
from uuid import UUID, SafeUUID

from django_jobchains.db import call_in_forks
from django_jobchains.payloads.types import OutputT_co

_lock = threading.Lock()
_last = 0
#: Random numbers of 64 bits for the next ids: a system call for each id would take a third of its time.
_random: list[int] = []


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


def chain_ids_of(given: ChainRefs, argument: str = "ids") -> tuple[UUID, ...]:
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
        if stamp <= _last:
            stamp = _last + 1
        _last = stamp
        if not _random:
            _random.extend(array("Q", os.urandom(1024)))
        random = _random.pop() >> 2
    return id_of((stamp >> 12 << 16 | 0x7 << 12 | stamp & 0xFFF) << 64 | 0b10 << 62 | random)


def id_of(number: int) -> UUID:
    """Return the UUID with this value. ``UUID(int=number)`` checks its arguments, and takes three times as long."""
    id_: Any = _WritableUUID.__new__(_WritableUUID)
    id_.int, id_.is_safe = number, SafeUUID.unknown
    id_.__class__ = UUID
    return id_  # type: ignore[no-any-return]


class _WritableUUID(UUID):
    """Has the layout of ``UUID``, whose attributes cannot be set."""

    __slots__ = ()
    __setattr__ = object.__setattr__  # type: ignore[assignment]


def first_id_at(time: datetime) -> UUID:
    """Return the lowest id that a moment can have. All ids created before it are lower."""
    return UUID(int=max(0, int(time.timestamp() * 1000)) << 80)


def milliseconds_of(id: UUID) -> int:
    """Return when a time-ordered id was created, in milliseconds since 1970."""
    return id.int >> 80


def _begin_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _random.clear()


call_in_forks(_begin_after_fork)
