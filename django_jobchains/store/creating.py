"""Creating jobs: chains and continuations, with what they wait for and what they must not double."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import IntegrityError

from django_jobchains.deduplication import lock_id
from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.store.blocking import Blocking
from django_jobchains.store.errors import retried
from django_jobchains.store.rows import CreatedJob, Effects, NewJob

#: Kept in one statement, so that JSON parameters stay small. More are split.
CHUNK = 10_000

_COLUMNS = (
    "id uuid, chain_id uuid, chain_index int, chain_type_name text, type_name text, queue text, priority int, "
    "run_at timestamptz, delay_seconds float, max_attempts int, input text, status text, deduplication_key text, "
    "on_blocker_failure text, lease_number int, context text"
)

#: What most jobs leave as the table has it: 0 or NULL.
_RARE = ("priority", "delay_seconds", "max_attempts", "lease_number", "context", "deduplication_key")
#: With one of these a row says when its job is due,
_PLANNED = {"run_at", "delay_seconds"}
#: and with one of these, that it may not be due yet.
_NOT_YET = _PLANNED | {"status"}


class Creating(Blocking):
    @retried
    def create(self, jobs: Sequence[NewJob], effects: Effects | None = None) -> list[CreatedJob]:
        """Inserts jobs in order; a date in the past becomes now. After an error none of them was created.

        Raises ``DuplicateJobId``, ``ChainNotFound`` for an unknown blocker, and ``InvalidBlockers``.
        """
        effects = effects or Effects()
        if not jobs:
            return []
        if len(jobs) <= CHUNK and not any(job.blockers or job.deduplicate for job in jobs):
            return self._insert(jobs, effects)
        # Whoever locks blockers does it at the level of those who complete them, see ``_lock_rows``.
        is_alone = not self.connection.in_atomic_block and not any(job.blockers for job in jobs)
        with self.transaction():
            if is_alone:
                self._read_committed()
            existing = self._existing(jobs)
            fresh = [job for number, job in enumerate(jobs) if number not in existing]
            blocked = [job for job in fresh if job.blockers]
            if blocked:
                self._lock_blockers(blocked)
            created: dict[UUID, CreatedJob] = {}
            for start in range(0, len(fresh), CHUNK):
                created.update((row.id, row) for row in self._insert(fresh[start : start + CHUNK], effects))
            if blocked:
                self._block(blocked, effects)
        return [
            _again(existing[number], created) if number in existing else created[job.id]
            for number, job in enumerate(jobs)
        ]

    def _insert(self, jobs: Sequence[NewJob], effects: Effects) -> list[CreatedJob]:
        rows = [self._new_row(job) for job in jobs]
        try:
            inserted = self._fetch(self._insert_sql, [json.dumps(rows)])
        except IntegrityError as error:
            if not self._is_duplicate(error):
                raise
            raise DuplicateJobId([job.id for job in jobs] if len(jobs) == 1 else []) from error
        effects.add_due(row["type_name"] for row in rows if not _NOT_YET & row.keys())
        effects.add_scheduled(row["type_name"] for row in rows if _PLANNED & row.keys() and "status" not in row)
        created_at = self._time(inserted[0][0])  # one clock for all
        return [CreatedJob(job.id, created_at) for job in jobs]

    def _new_row(self, job: NewJob) -> dict[str, Any]:
        """What differs from the usual job, which is the first of its chain: every key costs at both ends."""
        row: dict[str, Any] = {"id": job.id.hex, "type_name": job.type_name, "queue": job.queue, "input": job.input}
        if job.chain_index or job.chain_id is not job.id:
            row["chain_id"], row["chain_index"] = job.chain_id.hex, job.chain_index
            row["chain_type_name"] = job.chain_type_name
        if job.run_at is not None:
            row["run_at"] = self._time_text(job.run_at)
        for name in _RARE:
            if value := getattr(job, name):
                row[name] = value
        if job.blockers:
            row |= {"status": "blocked", "on_blocker_failure": job.on_blocker_failure}
        if job.is_cancelled:
            row["status"] = "cancelled"
        return row

    @property
    def _insert_sql(self) -> str:
        run_at = self._latest("d.run_at", self._after("clock.now", "COALESCE(d.delay_seconds, 0)"))
        return (
            f"INSERT INTO {self.job} (id, chain_id, chain_index, chain_type_name, type_name, queue, priority, run_at, "
            "max_attempts, input, status, deduplication_key, on_blocker_failure, finished_at, attempt, "
            "lease_number, context, crashes, created_at) "
            "SELECT d.id, COALESCE(d.chain_id, d.id), COALESCE(d.chain_index, 0), "
            "COALESCE(d.chain_type_name, d.type_name), d.type_name, d.queue, COALESCE(d.priority, 0), "
            f"{run_at}, d.max_attempts, d.input{self.json_cast}, COALESCE(d.status, 'pending'), "
            "d.deduplication_key, d.on_blocker_failure, CASE d.status WHEN 'cancelled' THEN clock.now END, 0, "
            f"COALESCE(d.lease_number, 0), d.context{self.json_cast}, 0, clock.now "
            f"FROM {self._rows(_COLUMNS)} CROSS JOIN {self.clock} WHERE true "
            f"RETURNING {self._as_text('created_at')}"
        )

    # Deduplication

    def _existing(self, jobs: Sequence[NewJob]) -> dict[int, CreatedJob]:
        """Return the jobs not to create, by their place, each with the first job of the chain that stands for it.

        Transactions that name the same key and type go one after the other, from here to their ends. Among equal keys
        in one batch the first wins.
        """
        lock_ids = {_name(job): lock_id(*_name(job)) for job in jobs if job.deduplicate}
        if not lock_ids:
            return {}
        unmarked = self._lock_keys(list(dict.fromkeys(lock_ids.values())))
        found = self._find_keys([job for job in jobs if job.deduplicate])
        existing: dict[int, CreatedJob] = {}
        first: dict[tuple[str, str], CreatedJob] = {}
        for number, job in enumerate(jobs):
            if job.deduplicate:
                if stands_for_it := found.get(job.id) or first.get(_name(job)):
                    existing[number] = stands_for_it
                else:
                    first[_name(job)] = CreatedJob(job.id, None)
        if reused := {lock_ids[name] for name in first}.difference(unmarked):
            self._mark_keys(reused)
        return existing

    def _find_keys(self, jobs: Sequence[NewJob]) -> dict[UUID, CreatedJob]:
        """In a statement of its own, so that it sees what the transactions before us committed."""
        rows = [self._key_row(job) for job in jobs]
        columns = "job_id uuid, type_name text, key text, scope text, seconds float, excluded text"
        found = self._fetch(
            f"SELECT wanted.job_id, wanted.chain_id, "
            f"(SELECT {self._as_text('root.created_at')} FROM {self.job} AS root WHERE root.id = wanted.chain_id) "
            "FROM (SELECT d.job_id, "
            f"CASE d.scope WHEN 'any' THEN {self._newest_with_key} ELSE {self._open_with_key} END AS chain_id "
            f"FROM {self._rows(columns)}) AS wanted WHERE wanted.chain_id IS NOT NULL",
            [json.dumps(rows)],
        )
        return {self._id(id_): CreatedJob(self._id(chain_id), self._time(text), True) for id_, chain_id, text in found}

    def _key_row(self, job: NewJob) -> dict[str, Any]:
        assert job.deduplicate is not None  # noqa: S101 - for the type checker
        window = job.deduplicate.window
        return {
            "job_id": job.id.hex,
            "type_name": job.type_name,
            "key": job.deduplication_key,
            "scope": job.deduplicate.scope,
            "seconds": window and window.total_seconds(),
            "excluded": json.dumps([self._id_text(id_) for id_ in job.deduplicate.exclude_chain_ids]),
        }

    @property
    def _newest_with_key(self) -> str:
        since = self._after(self.now, "-d.seconds")
        return (
            f"(SELECT job.id FROM {self.job} AS job WHERE job.deduplication_key = d.key AND job.chain_index = 0 "
            f"AND job.chain_type_name = d.type_name AND NOT ({self._is_listed('job.id', 'd.excluded')}) "
            f"AND job.created_at >= COALESCE({since}, {self._beginning}) ORDER BY job.created_at DESC LIMIT 1)"
        )

    @property
    def _open_with_key(self) -> str:
        """The chain whose last job is not final: the jobs before it are completed."""
        since = self._after(self.now, "-d.seconds")
        created_at = f"(SELECT first.created_at FROM {self.job} AS first WHERE first.id = job.chain_id)"
        return (
            f"(SELECT job.chain_id FROM {self.job} AS job WHERE job.deduplication_key = d.key "
            "AND job.status IN ('blocked', 'pending', 'running') AND job.chain_type_name = d.type_name "
            f"AND NOT ({self._is_listed('job.chain_id', 'd.excluded')}) "
            f"AND (d.seconds IS NULL OR {created_at} >= {since}) ORDER BY job.created_at DESC LIMIT 1)"
        )


def _name(job: NewJob) -> tuple[str, str]:
    """What is unique about a job with a deduplication key: its type, and the key with its tenant."""
    return job.type_name, job.deduplication_key or ""


def _again(row: CreatedJob, created: dict[UUID, CreatedJob]) -> CreatedJob:
    """A chain that stands for another: an older one, or the first of this batch with the same key."""
    return (created.get(row.id) or row)._replace(is_deduplicated=True)
