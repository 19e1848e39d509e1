"""The states of queues that people change while workers run: paused or limited."""

import json
from collections.abc import Collection
from typing import NamedTuple

from django_jobchains.store.database import Part
from django_jobchains.store.errors import retried, retried_at_read_committed


class QueueRule(NamedTuple):
    """A queue that is paused, or has a limit, or both."""

    name: str
    is_paused: bool
    slot_limit: int | None


class Queues(Part):
    def pause(self, names: Collection[str]) -> None:
        """Pause queues. A queue that is already paused keeps its time."""
        self._write("paused_at", "clock.now", f"COALESCE({self.tables.queue}.paused_at, excluded.paused_at)", names)

    def resume(self, names: Collection[str]) -> None:
        self._write("paused_at", "NULL", "NULL", names)

    def limit(self, name: str, slot_limit: int | None) -> None:
        """Set how many slots of a worker may run jobs of this queue; None is all of them."""
        number = "NULL" if slot_limit is None else str(int(slot_limit))
        self._write("slot_limit", number, "excluded.slot_limit", [name])

    @retried_at_read_committed
    def rules(self) -> list[QueueRule]:
        """Return the queues that are paused or limited, in the order of their names."""
        rows = self.db.fetch(
            f"""
            SELECT name, paused_at IS NOT NULL, slot_limit FROM {self.tables.queue}
            WHERE paused_at IS NOT NULL OR slot_limit IS NOT NULL ORDER BY name
            """,
            [],
        )
        return [QueueRule(name, bool(is_paused), slot_limit) for name, is_paused, slot_limit in rows]

    @retried
    def _write(self, column: str, value: str, again: str, names: Collection[str]) -> None:
        # In one order: two transactions that pause some of the same queues must not deadlock.
        self.db.fetch(
            f"""
            INSERT INTO {self.tables.queue} (name, {column})
            SELECT d.name, {value} FROM {self.db.rows("name text")} CROSS JOIN {self.db.clock} WHERE true
            ORDER BY d.name ON CONFLICT (name) DO UPDATE SET {column} = {again} RETURNING name
            """,
            [json.dumps([{"name": name} for name in sorted(set(names))])],
        )
