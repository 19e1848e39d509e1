"""The chains that ``on_failure`` enqueues in the transaction that marks a job as failed."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from logging import getLogger
from typing import Any, NamedTuple
from uuid import UUID

from django.apps import apps

from django_jobchains.db.connections import call_after_commit
from django_jobchains.db.ids import new_id
from django_jobchains.exceptions import InvalidPayload
from django_jobchains.payloads.codecs import NOT_STORED, decode_json, decode_text, encode_json
from django_jobchains.payloads.strict_json import decode, encode
from django_jobchains.store.database import Part, ids_json, rows_json, statement
from django_jobchains.store.rows import Effects, NewJob
from django_jobchains.telemetry.tracing import start_sending_failure
from django_jobchains.text.errors import describe, log_error

logger = getLogger("django_jobchains")

#: The keys of the limits of a job: limit_key, concurrency_key and rate_key.
Keys = tuple[int, str | None, str | None]
_COLUMNS = (
    "id uuid, type_name text, queue text, priority int, failed_job_id uuid, input text, context text, "
    "limit_key bigint, concurrency_key text, rate_key text"
)


@dataclass(frozen=True)
class FailedJob:
    """The input of the chain that ``on_failure`` enqueues: the job that failed.

    ``error`` is its last error, and ``input`` is its input as plain JSON. If the input cannot be decoded, for example
    because a key of the payload codec is missing, ``input`` is None, and ``input_problem`` explains why.
    """

    chain_id: UUID
    job_id: UUID
    type_name: str
    attempt: int
    error: str
    input: Any
    input_problem: str = ""


class FailureType(NamedTuple):
    """The job type that ``on_failure`` names, with the queue and priority of its jobs.

    ``keys``: returns the keys of the limits of a job with a stored input. None: the type has no limits.
    """

    name: str
    queue: str
    priority: int
    keys: Callable[[str], Keys] | None = None


class FailureChains(Part):
    def enqueue(self, failed: Collection[tuple[UUID, str]], effects: Effects) -> None:
        """Enqueue a chain for each of these jobs, which have just failed, if ``on_failure`` of its type names one.

        ``failed`` contains ids with type names. It takes two statements, or none if no type has an ``on_failure``,
        and a savepoint for types with limits.
        """
        config: Any = apps.get_app_config("django_jobchains")  # It holds the project's registry.
        types: dict[str, FailureType | None] = {name: config.registry.failure_type(name) for _, name in failed}
        wanted = {job_id: target for job_id, name in failed if (target := types[name])}
        if not wanted:
            return
        chains = [self._chain(wanted, row) for row in self.db.fetch(self._read, [ids_json(wanted)])]
        calls = {job_id: partial(target.keys, job.input) for job_id, target, job, _ in chains if target.keys}
        keys = self._keys(wanted, calls)
        rows = [
            (job.id.hex, *target[:3], job_id.hex, job.input, context, *keys.get(job_id, (None, None, None)))
            for job_id, target, job, context in chains
        ]
        self.db.fetch(self._insert, [rows_json(_COLUMNS, rows)])
        effects.failure_jobs.update((UUID(id_), (type_name, queue)) for id_, type_name, queue, *_ in rows)
        effects.add_due(type_name for _, type_name, *_ in rows)

    def _chain(
        self, wanted: Mapping[UUID, FailureType], row: tuple[Any, ...]
    ) -> tuple[UUID, FailureType, NewJob, str | None]:
        """Return a failed job's id, with the type, the first job and the stored context of its chain."""
        id_, chain_id, type_name, attempt, error, stored, context = row
        job_id = self.db.id(id_)
        failed = FailedJob(self.db.id(chain_id), job_id, type_name, attempt, error or "", stored)
        new, target, encoded = new_id(), wanted[job_id], _encoded(failed)
        job = NewJob(new, new, 0, target.name, target.name, target.queue, encoded, target.priority, context=context)
        return job_id, target, job, self._traced(job)

    def _traced(self, job: NewJob) -> str | None:
        """Begin the span of a chain, which ends with the commit, and return the chain's context as it is stored."""
        inherited = job.context
        sent = start_sending_failure(job)
        try:
            context = job.context if job.context in (None, inherited) else encode_json(job.context)
        except Exception as error:  # A codec may raise any error.
            log_error(logger, error, "The trace of the chain %s could not be stored: %s", job.id)
            return inherited
        if sent is not None:
            call_after_commit(self.db.using, partial(sent.end, [job.id], {}))
        return context

    def _keys(self, wanted: Mapping[UUID, FailureType], calls: Mapping[UUID, Callable[[], Keys]]) -> dict[UUID, Keys]:
        """Return the results of calls by the ids of the failed jobs. A worker later sets the keys that fail here."""
        found: dict[UUID, Keys] = {}
        results = self.db.each_in_savepoint(lambda call: call(), [*calls.values()])
        for job_id, keys in zip(calls, results, strict=True):
            if isinstance(keys, Exception):
                message = "The keys of the limits of %s for job %s failed: %s"
                log_error(logger, keys, message, wanted[job_id].name, job_id)
            else:
                found[job_id] = keys
        return found

    @statement
    def _read(self) -> str:
        return f"""
            SELECT id, chain_id, type_name, attempt, last_error, {self.db.json_text("input")},
                {self.db.json_text("context")}
            FROM {self.tables.job} WHERE id {self.db.any_id}
        """

    @statement
    def _insert(self) -> str:
        """Insert the chains. They inherit the context, such as the tenant or the actor, of the failed jobs, but not the
        trace context.
        """
        return f"""
            INSERT INTO {self.tables.job} (id, chain_id, chain_index, chain_type_name, type_name, queue, priority,
                failed_job_id, run_at, input, status, attempt, lease_number, context, crashes, created_at, limit_key,
                concurrency_key, rate_key)
            SELECT d.id, d.id, 0, d.type_name, d.type_name, d.queue, d.priority, d.failed_job_id, clock.now,
                d.input{self.db.json_cast}, 'pending', 0, 0, d.context{self.db.json_cast}, 0, clock.now,
                d.limit_key, d.concurrency_key, d.rate_key
            FROM {self.db.rows(_COLUMNS)} CROSS JOIN {self.db.clock} WHERE true RETURNING id
        """


def _encoded(failed: FailedJob) -> str:
    """Return the input of the chain for a job, from its stored input and error.

    An input that cannot be decoded is replaced by the reason, because a failure must always be recorded.
    """
    values = {**asdict(failed), "chain_id": str(failed.chain_id), "job_id": str(failed.job_id)}
    values["error"] = decode_text(failed.error)
    try:
        text = encode({**values, "input": decode(decode_json(failed.input, InvalidPayload))}, is_limited=False)
    except Exception as error:  # A codec may raise any error.
        text = encode({**values, "input": None, "input_problem": describe(error)}, is_limited=False)
    try:
        return encode_json(text)
    except Exception as error:
        log_error(logger, error, "The payload codec failed, so on_failure of job %s gets no payload: %s", failed.job_id)
        return encode({**values, "error": NOT_STORED, "input": None, "input_problem": NOT_STORED})
