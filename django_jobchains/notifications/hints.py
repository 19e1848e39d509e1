"""What a wake-up says, and how it is written for the way."""

import re
from dataclasses import dataclass, field
from typing import Literal, get_args
from uuid import UUID

HintKind = Literal["job_scheduled", "chain_finished", "ownership_lost"]
KINDS: frozenset[HintKind] = frozenset(get_args(HintKind))

#: The subject of a hint that is about any of its kind: "look for yourself".
EVERY = "*"


@dataclass(frozen=True, slots=True)
class Hint:
    """``subject``: the type of ``job_scheduled``, the chain of ``chain_finished``, the job of ``ownership_lost``.

    ``count``: how many jobs became due, None if that is not known. ``id``: of one sending, to share those jobs out by;
    up to 16 hexadecimal digits, empty with an unknown count. Hints of one kind and subject are equal: the one stands
    for the other.
    """

    kind: HintKind
    subject: str
    count: int | None = field(default=None, compare=False)
    id: str = field(default="", compare=False)


def job_scheduled(type_name: str, count: int | None = None) -> Hint:
    return Hint("job_scheduled", type_name, count)


def chain_finished(chain_id: UUID | str) -> Hint:
    return Hint("chain_finished", str(chain_id))


def ownership_lost(job_id: UUID | str) -> Hint:
    return Hint("ownership_lost", str(job_id))


#: Said when it is not known what was missed.
LOOK = (job_scheduled(EVERY), chain_finished(EVERY), ownership_lost(EVERY))

_SUBJECT = {
    "job_scheduled": r"[^\x00-\x1f\x7f]{1,200}",
    "chain_finished": r"\*|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
_SUBJECT["ownership_lost"] = _SUBJECT["chain_finished"]
_TEXT = {
    kind: re.compile(rf"(?P<count>[1-9]\d{{0,8}})?:(?P<id>[0-9a-f]{{0,16}}):(?P<subject>{subject})", re.ASCII)
    for kind, subject in _SUBJECT.items()
}
#: No text is longer: what is, was not written here.
MOST_BYTES = 1_000


def encode(hint: Hint) -> str:
    """The text of a hint. Its kind is not in it: each kind has a channel of its own."""
    return f"{'' if hint.count is None else hint.count}:{hint.id}:{hint.subject}"


def decode(kind: HintKind, text: str | bytes) -> Hint | None:
    """The hint of a text from a channel, to which anybody may have written: None for what is no hint of ours."""
    if len(text) > MOST_BYTES:
        return None
    try:
        found = _TEXT[kind].fullmatch(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError:
        return None
    if not found:
        return None
    count = found["count"]
    return Hint(kind, found["subject"], None if count is None else int(count), found["id"])
