"""The values of the gauges about a database."""

from collections.abc import Iterable, Iterator

from django_jobchains.db.connections import close_thread_connections
from django_jobchains.monitoring.facts import Overview, RecordFacts, overview, record_overview
from django_jobchains.monitoring.limits import LimitFacts, limit_facts
from django_jobchains.store import get_store
from django_jobchains.telemetry import names
from django_jobchains.telemetry.probes import Measurement


def measurements(using: str | None) -> list[Measurement]:
    """Return the values of the gauges about a database, each with its alias. Closes the connections of the thread."""
    alias = get_store(using).using
    try:
        found = list(_of_jobs(overview(using), record_overview(using)))
        for limit in limit_facts(using):
            found += _of_limit(limit)
        return [each._replace(values=(*each.values, alias)) for each in found]
    finally:
        close_thread_connections()


def _of_jobs(found: Overview, records: Iterable[RecordFacts]) -> Iterator[Measurement]:
    for queue in found.queues:
        for status in ("due", "scheduled", "blocked", "running"):
            yield Measurement(names.QUEUE_JOBS, (queue.name, status), getattr(queue, status))
        yield Measurement(names.OLDEST_DUE, (queue.name,), queue.oldest_due_age_seconds or 0.0)
    for kind in records:
        if kind.problem:
            continue
        for state in ("due", "queued", "processing", "errored", "failed"):
            yield Measurement(names.QUEUE_RECORDS, (kind.queue, kind.name, state), getattr(kind, state))
        yield Measurement(names.OLDEST_RECORD, (kind.queue, kind.name), kind.oldest_seconds)
    if (seconds := found.database.oldest_transaction_seconds) is not None:
        yield Measurement(names.OLDEST_TRANSACTION, (), seconds)


def _of_limit(limit: LimitFacts) -> Iterator[Measurement]:
    of_limit = limit.kind, limit.name
    yield Measurement(names.LIMIT_RUNNING, of_limit, limit.running)
    yield Measurement(names.LIMIT_WAITING, of_limit, limit.waiting)
    if limit.concurrency is not None:
        yield Measurement(names.LIMIT_CONCURRENCY, of_limit, limit.concurrency)
