"""After a conflict the store retries its own transaction, but not the caller's."""

from collections.abc import Callable
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_jobchains.declare.policies import Backoff
from django_jobchains.models import FailedAttempt
from django_jobchains.store import Store
from django_jobchains.store.retention import EndedChains, EndPosition
from django_jobchains.store.rows import ClaimedJob, Effects, EndedAttempt, LogEntries, NewLogLine
from django_jobchains.store.stats import TypeTally
from django_jobchains.store.workers import Beat
from tests.store.methods import public_methods
from tests.support.connections import committing
from tests.support.jobs import (
    SHIP,
    claim,
    expire,
    failed_try,
    finished,
    lease,
    new_job,
    next_job,
    running,
    tables,
)

pytestmark = committing

Call = Callable[[Store, list[ClaimedJob]], Any]

CALLS = {
    "attempts.finish": lambda store, jobs: store.attempts.finish([finished(job) for job in jobs]),
    "continue": lambda store, jobs: store.attempts.finish([finished(job, None, next_job(job)) for job in jobs]),
    "attempts.reschedule": lambda store, jobs: store.attempts.reschedule([failed_try(job) for job in jobs]),
    "attempts.fail": lambda store, jobs: store.attempts.fail([failed_try(job) for job in jobs]),
    "reschedule as asked": lambda store, jobs: store.attempts.reschedule(
        [failed_try(job, is_failure=False) for job in jobs]
    ),
    "leases.reap": lambda store, jobs: store.leases.reap(10, Backoff(), 10),
}
#: The error codes of PostgreSQL, or None for SQLite, which has only a message.
CONFLICTS = {"deadlock": "40P01", "serialization": "40001"} if connection.vendor == "postgresql" else {"busy": None}
CONFLICT = next(iter(CONFLICTS.values()))

calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)

#: The other calls of the store that can have their own transaction.
OTHERS = {
    "chains.ends": lambda store, jobs: store.chains.ends(ids(jobs)),
    "chains.contexts": lambda store, jobs: store.chains.contexts(ids(jobs)),
    "chains.lifetimes": lambda store, jobs: store.chains.lifetimes(ids(jobs)),
    "leases.expired": lambda store, jobs: store.leases.expired(10),
    "stats.activity": lambda store, jobs: store.stats.activity(),
    "deferred.apply": lambda store, jobs: store.deferred.apply(10, 0, Effects()),
    "stats.add_counts": lambda store, jobs: store.stats.add_counts([TypeTally(SHIP, 0, 1, 0, 0, 1, 1)]),
    "workers.beat": lambda store, jobs: store.workers.beat(BEAT),
    "chains.cancel": lambda store, jobs: store.chains.cancel(ids(jobs), Effects()),
    "stats.chain_type_names": lambda store, jobs: store.stats.chain_type_names(10),
    "leases.check": lambda store, jobs: store.leases.check([job.key for job in jobs]),
    "jobs.claim": lambda store, jobs: claim(store),
    "workers.count": lambda store, jobs: store.workers.count(),
    "stats.counts_by_time": lambda store, jobs: store.stats.counts_by_time(NOW),
    "stats.counts_by_type": lambda store, jobs: store.stats.counts_by_type(NOW, 10),
    "jobs.create": lambda store, jobs: store.jobs.create([new_job()]),
    "deferred.defer": lambda store, jobs: store.deferred.defer([EndedAttempt("handed_back", job.key) for job in jobs]),
    "chains.delete": lambda store, jobs: store.chains.delete(ids(jobs), cascade=False, effects=Effects()),
    "stats.failing_types": lambda store, jobs: store.stats.failing_types(60),
    "retention.find_ended": lambda store, jobs: store.retention.find_ended(
        "status", "completed", EndPosition(ids(jobs)[0]), ids(jobs)[1], 9, OLD
    ),
    "keys.forget": lambda store, jobs: store.keys.forget(10),
    "attempts.hand_back": lambda store, jobs: store.attempts.hand_back([job.key for job in jobs]),
    "attempts.has_failed": lambda store, jobs: store.attempts.has_failed(jobs[0].key),
    "stats.held_groups": lambda store, jobs: store.stats.held_groups(10),
    "workers.leave": lambda store, jobs: store.workers.leave("worker"),
    "queues.limit": lambda store, jobs: store.queues.limit("default", 1),
    "jobs.state_of": lambda store, jobs: store.jobs.state_of(ids(jobs)[0]),
    "chains.move": lambda store, jobs: store.chains.move([], None, 60, Effects()),
    "jobs.next_due": lambda store, jobs: store.jobs.next_due({SHIP: 60}),
    "queues.pause": lambda store, jobs: store.queues.pause(["default"]),
    "stats.pending_groups": lambda store, jobs: store.stats.pending_groups(10),
    "stats.queue_names": lambda store, jobs: store.stats.queue_names(10),
    "workers.present": lambda store, jobs: store.workers.present(),
    "retention.prune": lambda store, jobs: store.retention.prune(ids(jobs), OLD),
    "stats.prune_counts": lambda store, jobs: store.stats.prune_counts(),
    "workers.prune": lambda store, jobs: store.workers.prune(),
    "queues.rules": lambda store, jobs: store.queues.rules(),
    "leases.renew": lambda store, jobs: store.leases.renew([lease(job) for job in jobs]),
    "queues.resume": lambda store, jobs: store.queues.resume(["default"]),
    "chains.retry": lambda store, jobs: store.chains.retry(ids(jobs), Effects()),
    "logs.write": lambda store, jobs: store.logs.write(
        [LogEntries(*job.key, 1, [NewLogLine(0, 0, 20, "line", None)]) for job in jobs]
    ),
    "blockers.sweep": lambda store, jobs: store.blockers.sweep(10, None, Effects()),
    "last_jobs.chains_of": lambda store, jobs: store.last_jobs.chains_of(ids(jobs)),
    "last_jobs.of_jobs": lambda store, jobs: store.last_jobs.of_jobs(ids(jobs)),
    "last_jobs.read": lambda store, jobs: store.last_jobs.read(ids(jobs)),
    "stats.time_ago": lambda store, jobs: store.stats.time_ago(1),
    "stats.type_names": lambda store, jobs: store.stats.type_names(10),
}
#: Calls that are always part of a transaction that the caller ends.
NEVER_ALONE = {"attempts.lock", "attempts.lock_all", "chains.complete", "last_jobs.lock", "last_jobs.lock_chain_of"}

BEAT = Beat("worker", "host", 1, "1", 1, 0, 0, None, (SHIP,), False, 1.0, 10.0)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD = EndedChains(("completed",), NOW)


def ids(jobs):
    return [job.id for job in jobs]


class DriverError(Exception):
    def __init__(self, sqlstate):
        super().__init__("database is locked" if sqlstate is None else "conflict")
        self.sqlstate = sqlstate


@contextmanager
def failing(times, sqlstate, statement=1):
    """Make the n-th statement of the first tries fail, and record the statements that were sent."""
    sent = []
    state = {"left": times, "statement": 0}

    def execute(execute, sql, *args):
        if sql.startswith(("BEGIN", "PRAGMA", "SAVEPOINT")):
            return execute(sql, *args)
        sent.append(sql)
        state["statement"] += 1
        if state["left"] and state["statement"] == statement:
            state["left"] -= 1
            state["statement"] = 0
            error = DriverError(sqlstate)
            raise OperationalError(str(error)) from error
        return execute(sql, *args)

    with connection.execute_wrapper(execute):
        yield sent


@pytest.fixture
def jobs(store):
    jobs = running(store, 2)
    expire(*jobs)
    return jobs


@calls
@pytest.mark.parametrize("sqlstate", CONFLICTS.values(), ids=CONFLICTS)
def test_conflict_is_retried(store, jobs, call, sqlstate):
    with failing(2, sqlstate):
        assert len(call(store, jobs)) == 2


@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("sqlstate", CONFLICTS.values(), ids=CONFLICTS)
def test_every_other_call_is_retried(store, jobs, call, sqlstate):
    with failing(1, sqlstate):
        call(store, jobs)


def test_every_public_method_of_the_store_is_tested_here():
    """Calls about records are tested in ``tests/records``."""
    methods = {name for name in public_methods() if "record" not in name}
    assert methods - NEVER_ALONE == {*CALLS, *OTHERS} - {"continue", "reschedule as asked"}


@pytest.mark.parametrize("name", ["continue", "attempts.reschedule", "attempts.fail", "leases.reap"])
def test_conflict_in_the_middle_retries_the_whole_transaction(store, jobs, name):
    with failing(1, CONFLICT, statement=2):
        assert len(CALLS[name](store, jobs)) == 2
    assert FailedAttempt.objects.count() == (0 if name == "continue" else 2)


@calls
def test_permanent_conflict_is_raised_and_changes_nothing(store, jobs, call):
    before = tables()
    with failing(1_000, CONFLICT) as sent, pytest.raises(OperationalError):
        call(store, jobs)
    assert 2 <= len(sent) <= 10
    assert tables() == before


@calls
def test_another_error_is_not_retried(store, jobs, call):
    with failing(1, "53100") as sent, pytest.raises(OperationalError):
        call(store, jobs)
    assert len(sent) == 1


@calls
def test_in_the_transaction_of_the_caller_a_conflict_is_raised(store, jobs, call):
    before = tables()
    with failing(1, CONFLICT) as sent, pytest.raises(OperationalError), transaction.atomic():
        call(store, jobs)
    assert len(sent) == 1
    assert tables() == before
