"""What is said about queues while workers run: paused, or limited."""

import json
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from django_jobchains.store.dialect import Dialect
from django_jobchains.store.errors import retried, retried_at_read_committed


class QueueRule(NamedTuple):
    """A queue that is paused, or has a limit, or both."""

    name: str
    is_paused: bool
    slot_limit: int | None


class QueueStates(Dialect):
    def pause_queues(self, names: Collection[str]) -> None:
        """Pauses queues; one that is paused stays as it is, with its time."""
        self._say("paused_at", "clock.now", f"COALESCE({self.queue}.paused_at, excluded.paused_at)", names)

    def resume_queues(self, names: Collection[str]) -> None:
        self._say("paused_at", "NULL", "NULL", names)

    def limit_queue(self, name: str, slot_limit: int | None) -> None:
        """Sets how many slots of a worker may run jobs of this queue; None is all of them."""
        number = "NULL" if slot_limit is None else str(int(slot_limit))
        self._say("slot_limit", number, "excluded.slot_limit", [name])

    @retried
    def _say(self, column: str, value: str, again: str, names: Collection[str]) -> None:
        # In one order: two that pause some of the same queues must not wait for each other.
        self._fetch(
            f"INSERT INTO {self.queue} (name, {column}) "
            f"SELECT d.name, {value} FROM {self._rows('name text')} CROSS JOIN {self.clock} WHERE true ORDER BY d.name "
            f"ON CONFLICT (name) DO UPDATE SET {column} = {again} RETURNING name",
            [json.dumps([{"name": name} for name in sorted(set(names))])],
        )

    @retried_at_read_committed
    def queue_rules(self) -> list[QueueRule]:
        """The queues of which something is said, in the order of their names."""
        rows: Sequence[tuple[Any, ...]] = self._fetch(
            f"SELECT name, paused_at IS NOT NULL, slot_limit FROM {self.queue} "
            "WHERE paused_at IS NOT NULL OR slot_limit IS NOT NULL ORDER BY name",
            [],
        )
        return [QueueRule(name, bool(is_paused), slot_limit) for name, is_paused, slot_limit in rows]
