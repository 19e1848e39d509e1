"""One chain for one key: what counts as the same, and for how long."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import UUID

from django_jobchains.ids import chain_ids_of
from django_jobchains.schedules import MOST_SECONDS

KEY_LENGTH = 200

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

    def __post_init__(self) -> None:
        key: object = self.key
        if not isinstance(key, str) or not key.isprintable() or not 0 < len(key) <= KEY_LENGTH:
            raise ValueError(f"{self.key!r} is no deduplication key: 1 to {KEY_LENGTH} printable characters.")
        if self.scope not in ("incomplete", "any"):
            raise ValueError(f"scope={self.scope!r}: 'incomplete' or 'any'.")
        window: object = self.window
        if window is not None and not (isinstance(window, timedelta) and 0 < window.total_seconds() <= MOST_SECONDS):
            raise ValueError(f"window={window!r}: a timedelta above 0 and below a thousand years, or None for any age.")
        # A generator is used up by the first look at it.
        excluded = chain_ids_of(self.exclude_chain_ids, "exclude_chain_ids")
        object.__setattr__(self, "exclude_chain_ids", excluded)
