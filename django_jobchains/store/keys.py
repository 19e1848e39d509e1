"""Locks on deduplication keys: docs/decisions/0027-key-rows.md."""

import json
from collections.abc import Collection, Sequence
from hashlib import blake2b

from django_jobchains.store.database import Part, statement
from django_jobchains.store.errors import retried

#: How long the row of an unused key is kept. A transaction with an older snapshot could not see that it was used.
KEY_SECONDS = 86_400


def lock_id(chain_type_name: str, stored_key: str) -> int:
    """Return the lock number of a chain type and key: a signed 64-bit hash of both.

    Two keys with the same number would only wait for each other. With a million keys, the chance of that is one in 37
    million.
    """
    # Neither of the two can contain a NUL.
    digest = blake2b(f"{chain_type_name}\0{stored_key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class Keys(Part):
    """Locks on keys for databases where one transaction writes at a time: nothing is stored about keys."""

    def lock(self, lock_ids: Sequence[int]) -> Collection[int]:
        """Lock keys until the transaction ends. ``lock_ids``: numbers from ``lock_id``, each once, in any order.

        Returns those that do not need ``mark``.
        """
        self.db.write_first()
        return lock_ids

    def mark(self, lock_ids: Collection[int]) -> None:
        """Make transactions fail that later lock one of these locked keys with a snapshot older than ours."""

    def forget(self, limit: int) -> int:
        """Delete the rows of at most ``limit`` keys that were not used recently; return how many."""
        return 0


class KeyRows(Keys):
    """Locks on keys for databases where several transactions write at a time (PostgreSQL): a row for each key."""

    def lock(self, lock_ids: Sequence[int]) -> Collection[int]:
        """Lock the rows of keys. New rows need no ``mark``: they conflict with older snapshots by themselves."""
        return {lock_id for (lock_id,) in self.db.fetch(self._lock, [json.dumps(lock_ids)])}

    def mark(self, lock_ids: Collection[int]) -> None:
        self.db.fetch(self._mark, [json.dumps(list(lock_ids))])

    @retried
    def forget(self, limit: int) -> int:
        return len(self.db.fetch(self._forget, [limit]))

    @statement
    def _lock(self) -> str:
        # A row that exists is locked in the order of the keys and not changed: the condition of its update is false.
        return f"""
            INSERT INTO {self.tables.key_lock} (id, used_at) SELECT key::bigint, clock.now
            FROM json_array_elements_text(%s::json) AS key CROSS JOIN {self.db.clock} ORDER BY 1
            ON CONFLICT (id) DO UPDATE SET used_at = EXCLUDED.used_at WHERE false RETURNING id
        """

    @statement
    def _mark(self) -> str:
        ids = self.db.any_of("SELECT key::bigint FROM json_array_elements_text(%s::json) AS key")
        return f"""
            UPDATE {self.tables.key_lock} SET used_at = clock.now FROM {self.db.clock} WHERE id {ids} RETURNING id
        """

    @statement
    def _forget(self) -> str:
        unused = f"""
            SELECT key.id FROM {self.tables.key_lock} AS key
            WHERE key.used_at < {self.db.after(self.db.now, str(-KEY_SECONDS))}
            ORDER BY key.used_at LIMIT %s {self.db.skip_lock("key")}
        """
        return f"DELETE FROM {self.tables.key_lock} WHERE id {self.db.any_of(unused)} RETURNING id"
