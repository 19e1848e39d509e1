"""Deduplication: one chain for each key of a type. Why keys have rows: docs/decisions/0027-key-rows.md."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, get_args

from django_jobchains.db.ids import ChainRefs, chain_ids_of
from django_jobchains.store.database import Part, rows_json, statement
from django_jobchains.store.errors import retried
from django_jobchains.values import Choice, Duration, DurationLike, Or

#: The length of a stored key, including its tenant.
KEY_LENGTH = 200
#: Stored between a tenant and a key: "acme␟order-7". Neither may contain it, so that no two pairs are stored alike.
TENANT_SEPARATOR = "\N{SYMBOL FOR UNIT SEPARATOR}"
#: How long the row of an unused key is kept. A transaction with an older snapshot could not see that it was used.
KEY_SECONDS = 86_400
#: The columns of keys to find.
_KEYS = "position int, type_name text, key text, scope text, seconds float, excluded text"

Scope = Literal["incomplete", "any", "incomplete_or_recent"]
Replaceable = Literal["input", "run_at"]


@dataclass(frozen=True)
class Deduplicate:
    """Makes ``enqueue`` return an existing chain with the same type and key, instead of starting another.

    ``scope``: "incomplete" matches chains that may still run, and "any" also chains that have ended. With a ``window``,
    a duration, both match only chains that were created within this time. "incomplete_or_recent" needs a window, and
    matches chains that may still run, of any age, and all chains that were created within the window.
    ``exclude_chain_ids``: chains that never match, such as the chain that enqueues its own successor. ``replace``: the
    values of the new call that the first job of the existing chain gets if it has not started: "input" (also the values
    of ``context.bound``), "run_at" (also ``delay`` and ``expires``), or both.
    """

    key: str
    scope: Scope = "incomplete"
    window: DurationLike | None = None
    exclude_chain_ids: ChainRefs = ()
    tenant: str = ""
    # mypy refuses a tuple with a single string as a Collection of literals.
    replace: tuple[Replaceable, ...] | Collection[Replaceable] = ()

    def __post_init__(self) -> None:
        self._check_key()
        self._check_replace()
        Choice(*get_args(Scope)).check("scope", self.scope)
        if self.window_seconds is None and self.scope == "incomplete_or_recent":
            raise ValueError(
                "scope='incomplete_or_recent' needs a window: pass for example window=timedelta(hours=1), or use "
                "scope='incomplete' to match only chains that may still run."
            )
        if not isinstance(self.window, int):
            object.__setattr__(self, "window", self.window_seconds)  # "5m" and 300 are equal.
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

    def _check_replace(self) -> None:
        given: object = self.replace
        if isinstance(given, str) or not isinstance(given, Collection):
            raise TypeError(f"replace={given!r} is not valid: pass a tuple, such as replace=('input', 'run_at').")
        for name in given:
            Choice(*get_args(Replaceable)).check("replace", name)
        object.__setattr__(self, "replace", tuple(given))  # A list would not be hashable.

    @property
    def stored_key(self) -> str:
        """The key as it is stored in jobs, with the tenant before it if there is one."""
        return f"{self.tenant}{TENANT_SEPARATOR}{self.key}" if self.tenant else self.key

    @property
    def window_seconds(self) -> float | None:
        return Or(Duration(), None).check("window", self.window)

    @property
    def seconds_after_creation(self) -> float | None:
        """How long after its creation a chain that has ended can still match. None means forever."""
        if self.scope == "incomplete":
            return 0.0
        return self.window_seconds


def _is_storable(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and TENANT_SEPARATOR not in text


def lock_id(chain_type_name: str, stored_key: str) -> int:
    """Return the lock number of a chain type and key: a signed 64-bit hash of both.

    Two keys with the same number would only wait for each other. With a million keys, the chance of that is one in 37
    million.
    """
    # Neither of the two can contain a NUL.
    digest = blake2b(f"{chain_type_name}\0{stored_key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class Keys(Part):
    """Locks and finds keys in databases where one transaction writes at a time: nothing is stored about keys."""

    def lock(self, lock_ids: Sequence[int]) -> Collection[int]:
        """Lock keys until the transaction ends. ``lock_ids``: numbers from ``lock_id``, each once, in any order.

        Returns those that do not need ``mark``.
        """
        self.db.write_first()
        return lock_ids

    def find(self, rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """Find chains in a second statement, so that it sees what earlier transactions committed.

        ``rows``: the columns of ``_KEYS``. Each result has the position of a new job, and the id and the creation of a
        chain.
        """
        return self.db.fetch(self._with_key, [rows_json(_KEYS, rows)])

    def mark(self, lock_ids: Collection[int]) -> None:
        """Make transactions fail that later lock one of these locked keys with a snapshot older than ours."""

    def forget(self, limit: int) -> int:
        """Delete the rows of at most ``limit`` keys that were not used recently; return how many."""
        return 0

    @statement
    def _with_key(self) -> str:
        """SQL of the chain whose last job is not final, for the scopes except 'any': the jobs before it are completed.
        If there is none, the newest chain with the key, for the scopes except 'incomplete'.

        A job that has expired counts as final, although a worker has yet to claim and cancel it.
        """
        job, since = self.tables.job, self.db.after(self.db.now, "-d.seconds")
        return f"""
            SELECT wanted.position, wanted.chain_id,
                (SELECT {self.db.time_as_text("root.created_at")} FROM {job} AS root WHERE root.id = wanted.chain_id)
            FROM (SELECT d.position, COALESCE(
                (SELECT job.chain_id FROM {job} AS job WHERE d.scope <> 'any' AND job.deduplication_key = d.key
                    AND job.status IN ('blocked', 'pending', 'running') AND job.chain_type_name = d.type_name
                    AND (job.expires_at IS NULL OR job.expires_at > {self.db.now}
                        OR (job.attempt > 0 AND NOT {self.db.is_expired}))
                    AND NOT ({self.db.is_listed("job.chain_id", "d.excluded")})
                    AND (d.seconds IS NULL OR d.scope = 'incomplete_or_recent'
                        OR (SELECT first.created_at FROM {job} AS first WHERE first.id = job.chain_id) >= {since})
                    ORDER BY job.created_at DESC LIMIT 1),
                (SELECT job.id FROM {job} AS job WHERE d.scope <> 'incomplete' AND job.deduplication_key = d.key
                    AND job.chain_index = 0 AND job.chain_type_name = d.type_name
                    AND NOT ({self.db.is_listed("job.id", "d.excluded")})
                    AND job.created_at >= COALESCE({since}, {self.db.beginning}) ORDER BY job.created_at DESC LIMIT 1)
                ) AS chain_id
            FROM {self.db.rows(_KEYS)}) AS wanted WHERE wanted.chain_id IS NOT NULL
        """


class KeyRows(Keys):
    """Locks keys in databases where several transactions write at a time (PostgreSQL): each key has a row."""

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
