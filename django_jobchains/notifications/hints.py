"""Hints, their form on a channel, and which of them a process skips."""

import random
import re
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal, get_args
from uuid import UUID

HintKind = Literal["job_scheduled", "chain_finished", "ownership_lost"]
KINDS: frozenset[HintKind] = frozenset(get_args(HintKind))

#: The subject of a hint that may concern any subject of its kind, so that every receiver queries.
EVERY = "*"
#: The beginning of the subject of ``freed_queue``.
FREED = "queue:␟"


@dataclass(frozen=True, slots=True)
class Hint:
    """A message that something may have changed. Hints with the same kind and subject are equal.

    ``subject``: the name of the type for ``job_scheduled``, the id of the chain for ``chain_finished``, and the id of
    the job for ``ownership_lost``. ``count``: how many jobs became due, or None if this is unknown. ``id``: up to 16
    hexadecimal digits that are the same for all receivers, so that they can share the jobs. It is empty if the count is
    unknown.
    """

    kind: HintKind
    subject: str
    count: int | None = field(default=None, compare=False)
    id: str = field(default="", compare=False)


def job_scheduled(type_name: str, count: int | None = None) -> Hint:
    return Hint("job_scheduled", type_name, count)


def freed_queue(queue: str) -> Hint:
    """Return the hint that there may be a free place in a queue with a limit."""
    return Hint("job_scheduled", f"{FREED}{queue}")


def chain_finished(chain_id: UUID | str) -> Hint:
    return Hint("chain_finished", str(chain_id))


def ownership_lost(job_id: UUID | str) -> Hint:
    return Hint("ownership_lost", str(job_id))


#: What subscribers receive whenever hints may have been missed.
RESYNC_HINTS = (job_scheduled(EVERY), chain_finished(EVERY), ownership_lost(EVERY))

#: If one transaction has more subjects, one hint for ``EVERY`` subject is sent instead.
MAX_HINTS = 50
#: Longer texts are rejected. ``encode`` writes none.
MAX_BYTES = 1_000
_SUBJECT = {
    "job_scheduled": r"[^\x00-\x1f\x7f]{1,200}",
    "chain_finished": r"\*|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
_SUBJECT["ownership_lost"] = _SUBJECT["chain_finished"]
_TEXT = {
    kind: re.compile(rf"(?P<count>[1-9]\d{{0,8}})?:(?P<id>[0-9a-f]{{0,16}}):(?P<subject>{subject})", re.ASCII)
    for kind, subject in _SUBJECT.items()
}


def encode(hint: Hint) -> str:
    """Return the text of a hint. It does not contain the kind, because each kind has its own channel."""
    return f"{'' if hint.count is None else hint.count}:{hint.id}:{hint.subject}"


def few(hints: Collection[Hint]) -> Collection[Hint]:
    """Return the hints to send for one transaction: one of each kind for ``EVERY`` subject if there are too many."""
    return hints if len(hints) <= MAX_HINTS else {Hint(hint.kind, EVERY) for hint in hints}


def decode(kind: HintKind, text: str | bytes) -> Hint | None:
    """Decode a text from a channel. Return None if it is not valid, because anyone may write to a channel."""
    if len(text) > MAX_BYTES:
        return None
    try:
        found = _TEXT[kind].fullmatch(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError:
        return None
    if not found:
        return None
    count = found["count"]
    return Hint(kind, found["subject"], None if count is None else int(count), found["id"])


#: A process sends one hint of a kind and subject in this time, and skips the others. Receivers query again after twice
#: the time, so they find jobs that were committed in the meantime. This needs neither a thread nor a delayed send.
MERGE_SECONDS = 0.005
REQUERY_SECONDS = 2 * MERGE_SECONDS

#: How many hints are remembered. Beyond that, hints are sent without being merged.
_MAX_REMEMBERED = 1_000
_LONG_AGO = float("-inf")


class HintMerger:
    """Decides which hints of a process are sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[Hint, float] = {}
        self._chain_finished_at = _LONG_AGO
        #: The jobs of the hints that were skipped since then, which the next hint includes.
        self._left_out: dict[Hint, int | None] = {}

    def fresh(self, hints: Collection[Hint]) -> list[Hint]:
        """Return the hints to send now. Those with a count get a new id.

        Chains that end shortly after others become one hint for ``EVERY``: thousands may end each second.
        """
        now, fresh = time.monotonic(), []
        with self._lock:
            if len(self._sent) > _MAX_REMEMBERED:
                self._sent.clear()
                self._left_out.clear()
            is_close = now - self._chain_finished_at < MERGE_SECONDS
            for given in hints:
                hint = given
                if given.kind == "chain_finished":
                    self._chain_finished_at = now
                    hint = chain_finished(EVERY) if is_close else given
                if now - self._sent.get(hint, _LONG_AGO) < MERGE_SECONDS:
                    self._left_out[hint] = add_counts(self._left_out.get(hint, 0), hint.count)
                    continue
                self._sent[hint] = now
                count = add_counts(self._left_out.pop(hint, 0), hint.count)
                hint_id = "" if count is None else f"{random.getrandbits(64):016x}"
                fresh.append(replace(hint, count=count, id=hint_id))
        return fresh


def add_counts(first: int | None, second: int | None) -> int | None:
    """Return the count of two hints together, or None if one is unknown."""
    return None if first is None or second is None else first + second
