"""Jobs until their attempt begins: creation, with blockers and deduplication, and the claim."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

from django.db import IntegrityError

from django_jobchains.db.ids import chain_ids_of
from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.payloads.codecs import encode_json, encode_payloads, get_codec
from django_jobchains.store.blockers import Blockers
from django_jobchains.store.database import Database, Part, ids_json, statement, statements
from django_jobchains.store.deduplication import Keys, lock_id
from django_jobchains.store.errors import retried, retried_at_read_committed
from django_jobchains.store.rows import ClaimedJob, CreatedJob, Effects, ExpiredJob, NewJob
from django_jobchains.store.task_names import TaskNames

#: The limits of one statement: the number of jobs, and of characters in their inputs. They bound the memory that its
#: parameters take.
BATCH_SIZE = 1_000
MAX_BATCH_CHARACTERS = 2**22

#: Columns that differ between the jobs of a batch.
_OWN_COLUMNS = "id uuid, chain_id uuid, chain_index int, input jsonb"
#: Columns that are often equal in all jobs of a batch.
_SHARED_COLUMNS = (
    "chain_type_name text, type_name text, queue text, priority int, run_at timestamptz, delay_seconds float, "
    "max_attempts int, status text, deduplication_key text, on_blocker_failure text, lease_number int, context text, "
    "key_seconds float, schedule_name text, scheduled_for timestamptz"
)
#: Shared columns that only statements about jobs that expire, or whose types are limited, have.
_LIMIT_COLUMNS = "expires_at timestamptz, expires_seconds float, limit_key bigint, concurrency_key text, rate_key text"
_COLUMNS = f"{_OWN_COLUMNS}, {_SHARED_COLUMNS}".replace("input jsonb", "input text")
_NAMES = [column.split()[0] for column in _COLUMNS.split(", ")]
_SHARED_NAMES = [column.split()[0] for column in _SHARED_COLUMNS.split(", ")]
_LIMIT_NAMES = [column.split()[0] for column in _LIMIT_COLUMNS.split(", ")]
#: The values of a job from which its shared columns are made.
_shared_values = attrgetter("is_cancelled", "deduplicate", *_LIMIT_NAMES, *{*_SHARED_NAMES} - {"status", "key_seconds"})
_TIMES = ("run_at", "scheduled_for", "expires_at")
#: Values of existing jobs to replace. Without an input, the input, the context and the keys of limits are kept.
_REPLACED = (
    "job_id uuid, input text, context text, is_moved boolean, run_at timestamptz, delay_seconds float, "
    "expires_at timestamptz, expires_seconds float, limit_key bigint, concurrency_key text, rate_key text"
)
#: Columns that keep their default, 0 or NULL, in most jobs.
_RARE = (
    "priority",
    "delay_seconds",
    "max_attempts",
    "lease_number",
    "context",
    "deduplication_key",
    "schedule_name",
    "expires_seconds",
    "limit_key",
    "concurrency_key",
    "rate_key",
)
#: The job of a row with one of these keys may not be due yet.
_NOT_YET = {"run_at", "delay_seconds", "status"}

ResultT = TypeVar("ResultT")


class Jobs(Part, ABC):
    def __init__(self, db: Database, keys: Keys, blockers: Blockers, task_names: TaskNames) -> None:
        super().__init__(db)
        self._keys = keys
        self._blockers = blockers
        self._task_names = task_names

    @retried
    def create(self, jobs: Sequence[NewJob], effects: Effects | None = None) -> list[CreatedJob]:
        """Insert jobs in order; a date in the past becomes now. After an error, none of them exists.

        Raises ``DuplicateJobId``, ``ChainNotFound`` for an unknown blocker, and ``InvalidBlockers``.
        """
        effects = effects or Effects()
        if not jobs:
            return []
        has_blockers, has_keys = any(job.blockers for job in jobs), any(job.deduplicate for job in jobs)
        if not (has_blockers or has_keys) and len(batch := next(_batches(jobs))) == len(jobs):
            return self._insert(batch, effects)
        with effects.undone_on_error(), self.db.transaction() as is_own:
            # Blockers are locked at the isolation level of the transactions that complete them: ``LastJobs.lock_rows``.
            if is_own and has_keys and not has_blockers:
                self.db.read_committed()
            existing = self._existing(jobs)
            fresh = [job for number, job in enumerate(jobs) if number not in existing]
            blocked = [job for job in fresh if job.blockers]
            if blocked:
                self._blockers.lock(blocked)
            created = [row for batch in _batches(fresh) for row in self._insert(batch, effects)]
            if blocked:
                self._blockers.link(blocked, effects)
            replaced = self._replace([(jobs[number], found) for number, found in existing.items()], effects)
        if not existing:
            return created
        by_id = {row.id: row for row in created}
        by_id |= {id_: by_id[id_]._replace(is_replaced=True) for id_ in replaced & by_id.keys()}
        return [
            _existing_chain(job, existing[number], by_id, replaced) if number in existing else by_id[job.id]
            for number, job in enumerate(jobs)
        ]

    def create_and_commit(self, jobs: Sequence[NewJob], effects: Effects) -> None:
        """Insert jobs without blockers and deduplication, and commit the store's transaction."""
        self._insert_with(jobs, effects, self.db.commit_with)

    @retried
    def state_of(self, job_id: UUID) -> tuple[str, int] | None:
        """Return a job's status and lease number, or None if it does not exist."""
        rows = self.db.fetch(self._look, [job_id.hex])
        return (rows[0][0], rows[0][1]) if rows else None

    @retried
    def types_of(self, job_ids: Collection[UUID]) -> list[tuple[UUID, str]]:
        """Return the ids and types of these jobs, except those that do not exist."""
        rows = self.db.fetch(self._types_of, [ids_json(job_ids)])
        return [(self.db.id(id_), type_name) for id_, type_name in rows]

    @retried_at_read_committed
    def claim(
        self,
        worker: str,
        limit: int,
        leases: Mapping[str, float],
        queues: Collection[str] | None = None,
        excluded: Collection[str] = (),
        expired: list[ExpiredJob] | None = None,
    ) -> list[ClaimedJob]:
        """Claim up to ``limit`` due jobs, the most urgent first: by higher priority, then by earlier due time.

        ``leases`` maps the type names to claim to the seconds of their leases; ``queues`` None is every queue except
        those in ``excluded``. Jobs that should have started earlier are claimed too, and asked to stop. They are not
        returned, but added to ``expired``, for the caller to hand back, which cancels them.
        """
        if not leases or limit < 1:
            return []
        return self.claimed(self._claim(worker, limit, self._served(leases, queues, excluded)), worker, expired)

    def claimed(
        self, rows: Sequence[tuple[Any, ...]], worker: str, expired: list[ExpiredJob] | None = None
    ) -> list[ClaimedJob]:
        """Return the jobs of rows of ``claimed_columns``, the most urgent first. Those that have expired are added to
        ``expired`` instead."""
        jobs = [self._claimed(row, worker) for row in rows if row[20]]
        if expired is not None and len(jobs) < len(rows):
            expired += [
                ExpiredJob(self.db.id(row[0]), self.db.id(row[1]), row[4], row[9]) for row in rows if not row[20]
            ]
        return sorted(jobs, key=lambda job: (-job.priority, job.run_at, job.id.int))

    @retried_at_read_committed
    def next_due(
        self, leases: Mapping[str, float], queues: Collection[str] | None = None, excluded: Collection[str] = ()
    ) -> float | None:
        """Return the seconds until the next of these jobs is due: 0 or less if one is due, None if there is none."""
        ((seconds,),) = self.db.fetch(self._next_due, self._served(leases, queues, excluded))
        return None if seconds is None else float(seconds)

    @abstractmethod
    def _served(
        self, leases: Mapping[str, float], queues: Collection[str] | None, excluded: Collection[str]
    ) -> list[Any]:
        """Return the first parameters of a claim and of ``_next_due``, which begin with the leases."""

    @abstractmethod
    def _claim(self, worker: str, limit: int, served: list[Any]) -> list[tuple[Any, ...]]:
        """Claim jobs; return rows of ``claimed_columns``."""

    @property
    @abstractmethod
    def _next_due(self) -> str:
        """The seconds until the next job of the served types and queues is due."""

    @property
    def claimed_columns(self) -> str:
        """The fields of ``ClaimedJob``, in its order and without the worker and the key.

        The time of the attempt, the last one, is NULL for a job that has expired.
        """
        return f"""
            id, chain_id, chain_index, chain_type_name, type_name, queue, priority,
            {self.db.time_as_text("run_at")}, attempt, lease_number, max_attempts, input, last_error,
            {self.db.time_as_text("created_at")}, deduplication_key, context, crashes, COALESCE(reschedules, 0),
            schedule_name, {self.db.time_as_text("scheduled_for")}, {self.db.time_as_text("last_attempt_at")}
        """

    def _claimed(self, row: tuple[Any, ...], worker: str) -> ClaimedJob:
        job_id, time = self.db.id(row[0]), self.db.time
        chain_id = self.db.id(row[1]) if row[2] else job_id  # The first job of a chain has the chain's id.
        times = time(row[7]), time(row[13]), row[19] and time(row[19]), time(row[20])
        values = (job_id, chain_id, *row[2:7], times[0], *row[8:13], times[1], *row[14:19], *times[2:])
        return ClaimedJob._make((*values, worker, (job_id, row[9])))

    def started(self, now: str) -> str:
        """SQL of the assignments of a claim at this time. They ask a job that has expired to stop, with no attempt.

        The time of this request is ``expires_at``. Other cancellations have the time at which they were requested.
        """
        is_expired = f"job.expires_at <= {now} AND job.attempt = 0"
        return f"""
            status = 'running', attempt = attempt + 1, lease_number = lease_number + 1, leased_by = %s,
            cancel_requested_at = CASE WHEN {is_expired} THEN job.expires_at ELSE job.cancel_requested_at END,
            last_attempt_at = CASE WHEN {is_expired} THEN NULL ELSE {now} END
        """

    @statement
    def _look(self) -> str:
        return f"SELECT status, lease_number FROM {self.tables.job} WHERE id = {self.db.id_param}"

    @statement
    def _types_of(self) -> str:
        return f"SELECT id, type_name FROM {self.tables.job} WHERE id {self.db.any_id}"

    # Inserting

    def _insert(self, jobs: Sequence[NewJob], effects: Effects) -> list[CreatedJob]:
        inserted = self._insert_with(jobs, effects, self.db.fetch)
        created_at = self.db.time(inserted[0][0])  # One clock for all rows.
        return [CreatedJob(job.id, created_at) for job in jobs]

    def _insert_with(
        self, jobs: Sequence[NewJob], effects: Effects, send: Callable[[str, list[Any]], ResultT]
    ) -> ResultT:
        """Send the INSERT with a method of the database; return its result.

        The effects are added first: if the reply to a commit is lost, the jobs may exist.
        """
        self._task_names.add_new(jobs)
        is_single = len(jobs) == 1
        are_alike = self.db.has_arrays and not is_single and _are_alike(jobs)
        different = jobs[:1] if are_alike else jobs
        rows = [self._new_row(job) for job in different]
        effects.add_due((row["type_name"] for row in rows if _NOT_YET.isdisjoint(row)), len(jobs) // len(rows))
        effects.add_scheduled(row["type_name"] for row in rows if not ("status" in row or _NOT_YET.isdisjoint(row)))
        has_limit = any(job.expires_at or job.expires_seconds or job.limit_key for job in different)
        limits = _LIMIT_NAMES if has_limit else []
        if are_alike:
            params = [*map(rows[0].get, _SHARED_NAMES + limits), *_own_values(jobs)]
        else:  # The server processes parameters faster than JSON.
            params = list(map(rows[0].get, _NAMES + limits)) if is_single else [json.dumps(rows)]
        try:
            return send(self._insert_jobs(is_single, are_alike, has_limit), params)
        except IntegrityError as error:
            if not self.db.is_duplicate(error):
                raise
            raise DuplicateJobId([job.id for job in jobs] if is_single else []) from error

    def _new_row(self, job: NewJob) -> dict[str, Any]:
        """Return what differs from the most common job, the first of its chain: each key takes time on both sides."""
        row: dict[str, Any] = {"id": job.id.hex, "type_name": job.type_name, "queue": job.queue, "input": job.input}
        if job.chain_index or job.chain_id is not job.id:
            row["chain_id"], row["chain_index"] = job.chain_id.hex, job.chain_index
            row["chain_type_name"] = job.chain_type_name
        for name in _TIMES:
            if (time := getattr(job, name)) is not None:
                row[name] = self.db.time_text(time)
        for name in _RARE:
            if value := getattr(job, name):
                row[name] = value
        if job.deduplicate:
            row["key_seconds"] = job.deduplicate.seconds_after_creation
        if job.blockers:
            row |= {"status": "blocked", "on_blocker_failure": job.on_blocker_failure}
        if job.is_cancelled:
            row["status"] = "cancelled"
        if get_codec():
            encode_payloads(row)
        return row

    @statements
    def _insert_jobs(self, is_single: bool, are_alike: bool, has_limit: bool) -> str:
        more = f", {_LIMIT_COLUMNS}" if has_limit else ""
        rows = self.db.row(_COLUMNS + more) if is_single else self.db.rows(_COLUMNS + more)
        if are_alike:
            rows = self.db.arrays(_OWN_COLUMNS, _SHARED_COLUMNS + more)
        run_at = self.db.latest("d.run_at", self.db.after("clock.now", "COALESCE(d.delay_seconds, 0)"))
        expires_at = f"COALESCE(d.expires_at, {self.db.after(run_at, 'd.expires_seconds')})"
        limits = f", {expires_at}, d.limit_key, d.concurrency_key, d.rate_key" if has_limit else ""
        insert = f"""
            INSERT INTO {self.tables.job} (id, chain_id, chain_index, chain_type_name, type_name, queue, priority,
                run_at, max_attempts, input, status, deduplication_key, on_blocker_failure, finished_at, attempt,
                lease_number, context, crashes, created_at, deduplicates_until, schedule_name, scheduled_for
                {", expires_at, limit_key, concurrency_key, rate_key" if has_limit else ""})
            SELECT d.id, COALESCE(d.chain_id, d.id), COALESCE(d.chain_index, 0),
                COALESCE(d.chain_type_name, d.type_name), d.type_name, d.queue, COALESCE(d.priority, 0),
                {run_at}, d.max_attempts, d.input{self.db.json_cast}, COALESCE(d.status, 'pending'),
                d.deduplication_key, d.on_blocker_failure, CASE d.status WHEN 'cancelled' THEN clock.now END, 0,
                COALESCE(d.lease_number, 0), d.context{self.db.json_cast}, 0, clock.now,
                {self.db.after("clock.now", "d.key_seconds")}, d.schedule_name, d.scheduled_for {limits}
            FROM {rows} CROSS JOIN {self.db.clock} WHERE true
        """
        time = self.db.time_as_text("created_at")
        if are_alike:  # All rows have the same time, so one is returned.
            return f"WITH new AS ({insert} RETURNING created_at) SELECT {time} FROM new LIMIT 1"
        return f"{insert} RETURNING {time}"

    # Deduplication

    def _existing(self, jobs: Sequence[NewJob]) -> dict[int, CreatedJob | UUID]:
        """Return what replaces each job that must not be created, by position: a chain, or the id of a job in ``jobs``.

        From here until they end, transactions with the same key and type run one after the other. Among equal keys in
        one batch, the first wins.
        """
        lock_ids = {_name(job): lock_id(*_name(job)) for job in jobs if job.deduplicate}
        if not lock_ids:
            return {}
        unmarked = self._keys.lock(list(dict.fromkeys(lock_ids.values())))
        rows = []
        for number, job in enumerate(jobs):
            if key := job.deduplicate:
                excluded = json.dumps([self.db.id_text(id_) for id_ in chain_ids_of(key.exclude_chain_ids)])
                seconds = key.window_seconds
                rows.append((number, *_name(job), key.scope, seconds, excluded))
        found = {
            number: CreatedJob(self.db.id(chain_id), self.db.time(text), True)
            for number, chain_id, text in self._keys.find(rows)
        }
        existing: dict[int, CreatedJob | UUID] = {}
        first: dict[tuple[str, str], UUID] = {}
        for number, job in enumerate(jobs):
            if job.deduplicate:
                if replacement := found.get(number) or first.get(_name(job)):
                    existing[number] = replacement
                else:
                    first[_name(job)] = job.id
        if reused := {lock_ids[name] for name in first}.difference(unmarked):
            self._keys.mark(reused)
        return existing

    def _replace(self, again: Iterable[tuple[NewJob, CreatedJob | UUID]], effects: Effects) -> set[UUID]:
        """Give the existing jobs that have not started the values of new ones, as ``Deduplicate.replace`` asks for.

        Of several new jobs for one chain, the last one wins. Returns the ids of the jobs that were changed. Until the
        transaction ends, the claim skips them, so they cannot start with their old values.
        """
        rows: dict[UUID, dict[str, Any]] = {}
        for job, found in again:
            if replace := job.deduplicate and job.deduplicate.replace:
                job_id = found if isinstance(found, UUID) else found.id  # A chain has the id of its first job.
                row = rows.setdefault(job_id, {"job_id": job_id.hex})
                if "input" in replace:
                    row["input"] = encode_json(job.input)
                    row["context"] = job.context and encode_json(job.context)
                    row |= {name: getattr(job, name) for name in ("limit_key", "concurrency_key", "rate_key")}
                if "run_at" in replace:
                    row |= {"is_moved": True, "delay_seconds": job.delay_seconds or 0}
                    row["run_at"] = job.run_at and self.db.time_text(job.run_at)
                    row["expires_at"] = job.expires_at and self.db.time_text(job.expires_at)
                    row["expires_seconds"] = job.expires_seconds
        if not rows:
            return set()
        self.db.fetch(self._lock_waiting, [ids_json(rows)])
        by_ids = self.db.by_ids_params(job_id.hex for job_id in rows)
        changed = self.db.fetch(self._replace_waiting, [json.dumps(list(rows.values())), *by_ids])
        types = {self.db.id(id_): type_name for id_, type_name in changed}
        effects.add_scheduled(type_name for job_id, type_name in types.items() if "is_moved" in rows[job_id])
        return set(types)

    @statement
    def _lock_waiting(self) -> str:
        """Lock jobs in the order of their ids. A running job is not waited for: its handler may need the same key."""
        return f"""
            SELECT job.id FROM {self.tables.job} AS job WHERE job.id {self.db.any_id}
            AND job.status || '' IN ('blocked', 'pending') AND job.last_attempt_at IS NULL
            ORDER BY job.id {self.db.wait_lock("job")}
        """

    @statement
    def _replace_waiting(self) -> str:
        # A job that was returned to the queue has started: its handler may have worked with the old input. The
        # condition is a CASE for the reason at ``FENCE``.
        return f"""
            UPDATE {self.tables.job} AS job SET
                input = CASE WHEN d.input IS NULL THEN job.input ELSE d.input{self.db.json_cast} END,
                context = CASE WHEN d.input IS NULL THEN job.context ELSE d.context{self.db.json_cast} END,
                limit_key = CASE WHEN d.input IS NULL THEN job.limit_key ELSE d.limit_key END,
                concurrency_key = CASE WHEN d.input IS NULL THEN job.concurrency_key ELSE d.concurrency_key END,
                rate_key = CASE WHEN d.input IS NULL THEN job.rate_key ELSE d.rate_key END,
                run_at = CASE WHEN d.is_moved THEN {self.db.planned} ELSE job.run_at END,
                expires_at = CASE WHEN d.is_moved IS NULL THEN job.expires_at
                    WHEN d.expires_seconds IS NULL THEN d.expires_at
                    ELSE {self.db.after(self.db.planned, "d.expires_seconds")} END
            FROM {self.db.rows(_REPLACED)} CROSS JOIN {self.db.clock}
            WHERE job.id = d.job_id {self.db.by_ids}
            AND CASE WHEN job.status IN ('blocked', 'pending') THEN job.last_attempt_at IS NULL ELSE false END
            RETURNING id, type_name
        """


def _batches(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    """Yield the jobs in batches within the limits of one statement."""
    start = characters = 0
    for number, job in enumerate(jobs):
        characters += len(job.input)
        if number - start == BATCH_SIZE or (characters > MAX_BATCH_CHARACTERS and number > start):
            yield jobs[start:number]
            start, characters = number, len(job.input)
    if jobs:
        yield jobs[start:]


def _are_alike(jobs: Sequence[NewJob]) -> bool:
    """Return whether the jobs differ only in their ids, chains, indexes and inputs."""
    first, is_blocked = _shared_values(jobs[0]), bool(jobs[0].blockers)
    return all(_shared_values(job) == first and bool(job.blockers) is is_blocked for job in jobs)


def _own_values(jobs: Sequence[NewJob]) -> list[str]:
    """Return the ids, chains, indexes and inputs of the jobs as texts of arrays. First jobs need no chain or index."""
    later = jobs if any(job.chain_id is not job.id for job in jobs) else ()
    columns = (job.id.hex for job in jobs), (job.chain_id.hex for job in later), (str(job.chain_index) for job in later)
    inputs = [job.input for job in jobs]
    if get_codec():
        inputs = list(map(encode_json, inputs))
    return [*(f"{{{','.join(column)}}}" for column in columns), f"[{','.join(inputs)}]"]


def _name(job: NewJob) -> tuple[str, str]:
    """Return what deduplication compares: the job's type, and the key with its tenant."""
    return job.type_name, job.deduplication_key or ""


def _existing_chain(
    job: NewJob, found: CreatedJob | UUID, created: dict[UUID, CreatedJob], replaced: Collection[UUID]
) -> CreatedJob:
    """Return the chain that a job was not created for: an older one, or the first of this batch with the same key."""
    row = created[found] if isinstance(found, UUID) else found
    is_replaced = row.id in replaced and bool(job.deduplicate and job.deduplicate.replace)
    return row._replace(is_deduplicated=True, is_replaced=is_replaced)
