"""What was changed at run time about queues and about limits, which workers read before they claim."""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from django_jobchains.store.database import Part, names_json, rows_json
from django_jobchains.store.errors import retried, retried_at_read_committed
from django_jobchains.store.record_tables import RecordTable

StartedT = TypeVar("StartedT")

_OVERRIDE = "name text, concurrency int, rate int"


class QueueRule(NamedTuple):
    """A queue that is paused, or has a limit, or both."""

    name: str
    is_paused: bool
    slot_limit: int | None


class Override(NamedTuple):
    """What replaces the numbers that the code declares for the limit of a type or a group; None keeps them."""

    concurrency: int | None = None
    rate: int | None = None


class Rules(NamedTuple):
    """The queues that are paused or limited, in the order of their names, and the overrides of limits by name."""

    queues: tuple[QueueRule, ...] = ()
    overrides: Mapping[str, Override] = MappingProxyType({})


class LimitedQueue(NamedTuple):
    """A queue with a limit of running jobs and records. ``tables``: the tables of its records."""

    name: str
    slot_limit: int
    tables: Sequence[RecordTable] = ()


class Queues(Part):
    def pause(self, names: Collection[str]) -> None:
        """Pause queues. A queue that is already paused keeps its time."""
        self._write("paused_at", "clock.now", f"COALESCE({self.tables.queue}.paused_at, excluded.paused_at)", names)

    def resume(self, names: Collection[str]) -> None:
        self._write("paused_at", "NULL", "NULL", names)

    def limit(self, name: str, slot_limit: int | None) -> None:
        """Set how many jobs of this queue may run at the same time, in all workers together. None removes the limit."""
        number = "NULL" if slot_limit is None else str(int(slot_limit))
        self._write("slot_limit", number, "excluded.slot_limit", [name])

    @retried
    def start_within(self, queue: LimitedQueue, start: Callable[[int], StartedT]) -> StartedT | None:
        """Call ``start`` with the number of places that are free, below 1 if there are none, and return its result.

        ``start`` claims jobs or records of this queue, in the same transaction. Another one that decides about the
        queue at the same time is not waited for: then the result is None, and nothing is started.
        """
        with self.db.transaction() as is_own:
            self.db.write_first()
            if is_own:
                self.db.read_committed()
            if not self.db.has_one_writer:
                [(is_locked,)] = self.db.fetch(f"SELECT {self.db.try_lock('%s::text')}", [f"queue {queue.name}"])
                if not is_locked:
                    return None
            # Counted in another statement, because its snapshot is newer than the lock.
            return start(queue.slot_limit - self.count(queue))

    def count(self, queue: LimitedQueue) -> int:
        """Count the running jobs of a queue, and its records in process."""
        names = [(table.name, table.under(table.name).state) for table in queue.tables]
        counts = [f"(SELECT count(*) FROM {table} WHERE {state} = 'processing')" for table, state in names]
        # By the index of running jobs, of which there are few.
        jobs = f"{self.tables.job} {self.db.by_index('jobchains_leased')}"
        counts.append(f"(SELECT count(*) FROM {jobs} WHERE status = 'running' AND queue = %s)")
        [(running,)] = self.db.fetch(f"SELECT {' + '.join(counts)}", [queue.name])
        return int(running)

    @retried
    def override(self, name: str, override: Override) -> None:
        """Override the limit of a type or a group. What is None in the override stays as it is."""
        table = self.tables.limit_override
        self.db.fetch(
            f"""
            INSERT INTO {table} (name, concurrency, rate) SELECT name, concurrency, rate FROM {self.db.rows(_OVERRIDE)}
            WHERE true ON CONFLICT (name) DO UPDATE SET
            concurrency = COALESCE(excluded.concurrency, {table}.concurrency),
            rate = COALESCE(excluded.rate, {table}.rate) RETURNING name
            """,
            [rows_json(_OVERRIDE, [(name, *override)])],
        )

    @retried
    def reset(self, name: str) -> bool:
        """Remove the override of a limit. Return whether there was one."""
        return bool(self.db.fetch(f"DELETE FROM {self.tables.limit_override} WHERE name = %s RETURNING name", [name]))

    @retried_at_read_committed
    def rules(self) -> Rules:
        """Return what was changed at run time, in one statement."""
        rows = self.db.fetch(
            f"""
            SELECT 1 AS kind, name, paused_at IS NOT NULL, slot_limit, NULL AS rate FROM {self.tables.queue}
            WHERE paused_at IS NOT NULL OR slot_limit IS NOT NULL
            UNION ALL SELECT 2, name, false, concurrency, rate FROM {self.tables.limit_override} ORDER BY kind, name
            """,
            [],
        )
        return Rules(
            tuple(QueueRule(name, bool(is_paused), limit) for kind, name, is_paused, limit, _ in rows if kind == 1),
            {name: Override(limit, rate) for kind, name, _, limit, rate in rows if kind == 2},
        )

    @retried
    def _write(self, column: str, value: str, again: str, names: Collection[str]) -> None:
        # In one order: two transactions that pause some of the same queues must not deadlock.
        self.db.fetch(
            f"""
            INSERT INTO {self.tables.queue} (name, {column})
            SELECT d.name, {value} FROM {self.db.rows("name text")} CROSS JOIN {self.db.clock} WHERE true
            ORDER BY d.name ON CONFLICT (name) DO UPDATE SET {column} = {again} RETURNING name
            """,
            [names_json(sorted(set(names)))],
        )
