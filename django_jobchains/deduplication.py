"""One chain for one key: what counts as the same, and for how long."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Literal
from uuid import UUID

from django_jobchains.ids import chain_ids_of
from django_jobchains.schedules import MOST_SECONDS

#: Of a key as it is stored, with its tenant.
KEY_LENGTH = 200
#: Stored between a tenant and a key: "acme␟order-7". Neither may contain it, so no two pairs are stored alike.
TENANT_SEPARATOR = "\N{SYMBOL FOR UNIT SEPARATOR}"

Scope = Literal["incomplete", "any"]


@dataclass(frozen=True)
class Deduplicate:
    """Enqueueing returns the chain of the same type and key, if there is one, instead of starting another.

    ``scope``: "incomplete" looks for chains that may still run, "any" also for those that ended. ``window``: only for
    chains created so lately. ``exclude_chain_ids``: chains that don't count, as the one that starts its own successor.
    """

    key: str
    scope: Scope = "incomplete"
    window: timedelta | None = None
    exclude_chain_ids: Collection[UUID] = ()
    tenant: str = ""

    def __post_init__(self) -> None:
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
        if self.scope not in ("incomplete", "any"):
            raise ValueError(f"scope={self.scope!r} is not valid: use 'incomplete' or 'any'.")
        window: object = self.window
        if window is not None and not (isinstance(window, timedelta) and 0 < window.total_seconds() <= MOST_SECONDS):
            raise ValueError(
                f"window={window!r} is not valid: use a timedelta above 0 and below a thousand years, or None for "
                "chains of any age."
            )
        # A generator is used up by the first look at it.
        excluded = chain_ids_of(self.exclude_chain_ids, "exclude_chain_ids")
        object.__setattr__(self, "exclude_chain_ids", excluded)

    @property
    def stored_key(self) -> str:
        """The key as jobs store it: the tenant comes first, if there is one."""
        return f"{self.tenant}{TENANT_SEPARATOR}{self.key}" if self.tenant else self.key


def _is_storable(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and TENANT_SEPARATOR not in text


def lock_id(chain_type_name: str, stored_key: str) -> int:
    """Return the number that stands for a chain type and key in the database's locks: a signed 64-bit hash of both.

    Two keys with one number would only wait for each other. Among a million keys, that has a chance of one in 37
    million.
    """
    # Neither of the two can contain a NUL.
    digest = blake2b(f"{chain_type_name}\0{stored_key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
