"""Deduplication: one chain for each key of a type."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args
from uuid import UUID

from django_jobchains.db.ids import chain_ids_of
from django_jobchains.values import MAX_SECONDS, Choice

#: The length of a stored key, including its tenant.
KEY_LENGTH = 200
#: Stored between a tenant and a key: "acme␟order-7". Neither may contain it, so that no two pairs are stored alike.
TENANT_SEPARATOR = "\N{SYMBOL FOR UNIT SEPARATOR}"

Scope = Literal["incomplete", "any", "incomplete_or_recent"]


@dataclass(frozen=True)
class Deduplicate:
    """Return the existing chain with the same type and key, if there is one, instead of starting another.

    ``scope``: "incomplete" matches chains that may still run, and "any" also chains that have ended. With a ``window``,
    a timedelta that counts from the existing chain's creation, both match younger chains only. "incomplete_or_recent"
    needs a window: it matches chains that may still run, whatever their age, and chains that are younger than it.
    ``exclude_chain_ids``: chains that never match, such as the chain that enqueues its own successor.
    """

    key: str
    scope: Scope = "incomplete"
    window: timedelta | None = None
    exclude_chain_ids: Collection[UUID] = ()
    tenant: str = ""

    def __post_init__(self) -> None:
        self._check_key()
        Choice(*get_args(Scope)).check("scope", self.scope)
        window: object = self.window
        if window is not None and not (isinstance(window, timedelta) and 0 < window.total_seconds() <= MAX_SECONDS):
            raise ValueError(
                f"window={window!r} is not valid: use a timedelta above 0 and below a thousand years, or None for "
                "chains of any age."
            )
        if self.scope == "incomplete_or_recent" and window is None:
            raise ValueError(
                "scope='incomplete_or_recent' needs a window: pass for example window=timedelta(hours=1), or use "
                "scope='incomplete' to match only chains that may still run."
            )
        # A generator can be read only once.
        excluded = chain_ids_of(self.exclude_chain_ids, "exclude_chain_ids")
        object.__setattr__(self, "exclude_chain_ids", excluded)

    def _check_key(self) -> None:
        if not _is_storable(self.key) or not 0 < len(self.key) <= KEY_LENGTH:
            raise ValueError(
                f"{self.key!r} is not a deduplication key. A key has 1 to {KEY_LENGTH} printable characters, "
                f"and no {TENANT_SEPARATOR}."
            )
        if not _is_storable(self.tenant):
            raise ValueError(
                f'tenant={self.tenant!r}: a string of printable characters without {TENANT_SEPARATOR}, or "" for none.'
            )
        if len(self.stored_key) > KEY_LENGTH:
            raise ValueError(
                f"tenant={self.tenant!r} and key {self.key!r} are too long: together they have at most "
                f"{KEY_LENGTH - len(TENANT_SEPARATOR)} characters."
            )

    @property
    def stored_key(self) -> str:
        """The key as jobs store it, after the tenant if there is one."""
        return f"{self.tenant}{TENANT_SEPARATOR}{self.key}" if self.tenant else self.key

    @property
    def seconds_after_creation(self) -> float | None:
        """How long after its creation a chain can still match once it has ended. None means forever."""
        if self.scope == "incomplete":
            return 0.0
        return None if self.window is None else self.window.total_seconds()


def _is_storable(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and TENANT_SEPARATOR not in text
