"""Calls take a constant number of statements, whatever the size of the batch. One table contains the numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains.db.ids import new_id
from django_jobchains.declare.policies import Backoff
from django_jobchains.statuses import TRANSITIONS
from django_jobchains.store import Store
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.last_jobs import LastJob
from django_jobchains.store.rows import ClaimedJob, Effects
from tests.store.contract.ends import CALLS
from tests.support.connections import committing
from tests.support.jobs import (
    LEASE_SECONDS,
    MAIL,
    SHIP,
    alter,
    claim,
    create,
    entries,
    expire,
    failed_try,
    finished,
    lease,
    link,
    new_job,
    next_job,
    running,
)

pytestmark = pytest.mark.django_db

Jobs = Sequence[ClaimedJob]
Call = Callable[[Store, Jobs], Any]


@dataclass(frozen=True)
class Counted:
    """A call about running jobs with expired leases, and its number of statements without BEGIN and COMMIT.

    ``before`` is called with the jobs first. ``more_on_sqlite`` is the number of additional statements on SQLite, which
    locks with an empty write. It is negative if SQLite saves a query.
    """

    statements: int
    call: Call
    before: Call = lambda store, jobs: None
    more_on_sqlite: int = 0

    def number(self, store):
        return self.statements + (self.more_on_sqlite if store.connection.vendor == "sqlite" else 0)


#: A chain that a test's continuations wait for.
BLOCKER = new_id()


def blocker(store, jobs):
    create(store, 1, MAIL, id=BLOCKER)


def continued(job, **changes):
    return finished(job, None, next_job(job, **changes))


def chains(jobs):
    return [job.id for job in jobs]


def waiting_for(jobs, **changes):
    """Return one new job that waits for each of these chains, and one that waits for all of them."""
    waits = [(job.id,) for job in jobs] + [tuple(chains(jobs))]
    return [new_job(MAIL, blockers=blockers, delay_seconds=60, **changes) for blockers in waits]


def awaited(store, jobs):
    store.jobs.create(waiting_for(jobs))


def awaited_with_policy_fail(store, jobs):
    store.jobs.create(waiting_for(jobs, on_blocker_failure="fail"))


def with_status(status):
    return lambda store, jobs: alter(jobs, status=status)


def stuck(store, jobs):
    """Complete the jobs without freeing their dependents."""
    awaited(store, jobs)
    alter(jobs, status="completed")


def having_blockers(store, jobs):
    for job, chain_id in zip(jobs, create(store, len(jobs), MAIL, delay_seconds=60), strict=True):
        link(job, chain_id)


def keyed(number):
    """Return new jobs of two scopes with as many keys each."""
    keys = [(f"{scope} {n}", scope) for scope in ("incomplete", "any") for n in range(number)]
    return [new_job(MAIL, deduplicate=Deduplicate(key, scope), deduplication_key=key) for key, scope in keys]


def keyed_before(store, jobs):
    store.jobs.create(keyed(len(jobs)))


def deduplicated(store, jobs):
    """Enqueue jobs with existing keys and as many with new ones, each of them twice."""
    rows = store.jobs.create(keyed(2 * len(jobs)) + keyed(2 * len(jobs)))
    assert sum(row.is_deduplicated for row in rows) == 6 * len(jobs)


def replaced(store, jobs):
    """Enqueue jobs with keys, each of them twice. They replace the values of chains with the same keys."""
    for job in (new_jobs := [*keyed(len(jobs)), *keyed(len(jobs))]):
        job.deduplicate = replace(job.deduplicate, replace=("input", "run_at"))
    assert any(row.is_replaced for row in store.jobs.create(new_jobs))


def pending(store, jobs):
    create(store, len(jobs))


def expired(store, jobs):
    create(store, len(jobs), expires_seconds=-1.0)


def last_job_of(job):
    names = ("chain_type_name", "type_name", "queue", "priority", "deduplication_key")
    return LastJob(
        job.chain_id, job.id, 0, *(getattr(job, name) for name in names), status="running", lease_number=1, context=None
    )


def complete(store, jobs):
    """Complete the first chain, which all others may wait for."""
    store.chains.complete(last_job_of(jobs[0]), '"done"', None, Effects())


def awaiting_the_first(store, jobs):
    store.jobs.create([new_job(MAIL, blockers=(jobs[0].id,)) for _ in jobs])


#: The comments list the statements in their order. "…" stands for the statements of the entry before.
STATEMENTS = {
    "create": Counted(1, lambda store, jobs: store.jobs.create([new_job() for _ in jobs])),
    # lock the keys, find them, insert
    "create, deduplicated": Counted(3, deduplicated, keyed_before),
    # lock the keys, find them, lock the jobs, replace their values
    "create, replaced": Counted(4, replaced, replaced),
    "claim": Counted(1, lambda store, jobs: claim(store, len(jobs)), pending),
    "claim, many types": Counted(1, lambda store, jobs: claim(store, types=[SHIP, *map(str, chains(jobs))]), pending),
    "next_due": Counted(1, lambda store, jobs: store.jobs.next_due({SHIP: LEASE_SECONDS}), pending),
    "state_of": Counted(1, lambda store, jobs: store.jobs.state_of(jobs[0].id)),
    "lock": Counted(1, lambda store, jobs: store.attempts.lock(jobs[0].id)),
    # lock the blockers' last jobs, check that they still are the last ones, insert, link, close links, free
    "create, with blockers": Counted(6, awaited, more_on_sqlite=1),
    # … and find jobs to fail
    "create, with blockers and policy fail": Counted(7, awaited_with_policy_fail, more_on_sqlite=1),
    "renew": Counted(1, CALLS["renew"]),
    "renew, all lost": Counted(
        2,
        lambda store, jobs: store.leases.renew([lease(job._replace(lease_number=9, key=(job.id, 9))) for job in jobs]),
    ),
    "check": Counted(1, CALLS["check"]),
    "hand_back": Counted(1, CALLS["hand_back"]),
    # write, find waiting jobs
    "hand_back, all asked to stop": Counted(2, CALLS["hand_back"], CALLS["cancel"]),
    "lock_all": Counted(2, lambda store, jobs: store.attempts.lock_all([job.id for job in jobs]), more_on_sqlite=1),
    "log": Counted(2, lambda store, jobs: store.logs.write([entries(job, "a", progress=0.5) for job in jobs])),
    "finish": Counted(2, CALLS["finish"], more_on_sqlite=-1),
    "finish, locked": Counted(
        1, lambda store, jobs: store.attempts.finish([finished(job) for job in jobs], is_locked=True)
    ),
    # write, find waiting jobs, lock them, close links, free
    "finish, awaited": Counted(5, CALLS["finish"], awaited),
    # … and find jobs to fail
    "finish, awaited with policy fail": Counted(6, CALLS["finish"], awaited_with_policy_fail),
    "finish, continued": Counted(2, CALLS["continue"]),
    # lock the last jobs, check that they still are, write; lock and check the blockers, find their blockers; insert,
    # link, close links, free
    "finish, continued with a blocker": Counted(
        10, lambda store, jobs: store.attempts.finish([continued(job, blockers=(BLOCKER,)) for job in jobs]), blocker, 2
    ),
    # record the errors, write, find jobs that wait for ended chains
    "reschedule": Counted(2, CALLS["reschedule"]),
    "fail": Counted(3, CALLS["fail"]),
    # … lock the waiting jobs, close links, free, find jobs to fail, find jobs that wait for these
    "fail, awaited with policy fail": Counted(8, CALLS["fail"], awaited_with_policy_fail),
    # record the errors, write, find jobs that wait for ended chains
    "reap": Counted(2, lambda store, jobs: store.leases.reap(len(jobs), Backoff(), 10)),
    "reap, for the last time": Counted(3, lambda store, jobs: store.leases.reap(len(jobs), Backoff(), 1)),
    "reap, nothing expired": Counted(
        1, lambda store, jobs: store.leases.reap(len(jobs), Backoff(), 10), CALLS["renew"]
    ),
    "lock_last_jobs": Counted(2, lambda store, jobs: store.last_jobs.lock(chains(jobs)), more_on_sqlite=1),
    "last_jobs": Counted(1, lambda store, jobs: store.last_jobs.read(chains(jobs))),
    # a savepoint and its end; write, find waiting jobs
    "complete": Counted(4, complete),
    # … lock the waiting jobs, close links, free
    "complete, awaited": Counted(7, complete, awaiting_the_first),
    # read the last jobs; a savepoint and its end, a lock timeout and its end; lock the jobs, check that they still are
    # the last ones; write
    "cancel": Counted(8 if connection.vendor == "postgresql" else 6, CALLS["cancel"]),
    # read the last jobs, lock them, check that they still are, write, find jobs that wait for ended chains
    "cancel, pending": Counted(5, CALLS["cancel"], with_status("pending"), 2),
    # … lock the waiting jobs, close links, free
    "cancel, pending and awaited": Counted(
        8, CALLS["cancel"], lambda store, jobs: [awaited(store, jobs), alter(jobs, status="pending")], 2
    ),
    # write, find jobs that wait for ended chains
    "expire": Counted(3, lambda store, jobs: store.chains.expire(1_000, Effects()), expired),
    "expire, nothing expired": Counted(1, lambda store, jobs: store.chains.expire(1_000, Effects())),
    # lock, check that these are the current jobs, write, delete requests to cancel
    "retry": Counted(4, lambda store, jobs: store.chains.retry(chains(jobs), Effects()), with_status("failed"), 1),
    # lock, check that these are the current jobs, write
    "move": Counted(
        3, lambda store, jobs: store.chains.move(chains(jobs), None, 60, Effects()), with_status("pending"), 1
    ),
    # find the chains, lock the last jobs, check that they still are, find references, delete from five tables, and
    # links twice
    "delete": Counted(
        10, lambda store, jobs: store.chains.delete(chains(jobs), cascade=False, effects=Effects()), more_on_sqlite=2
    ),
    # … find blockers before and after the lock, and their blockers, of which there are none
    "delete, cascade": Counted(
        14, lambda store, jobs: store.chains.delete(chains(jobs), cascade=True, effects=Effects()), having_blockers, 2
    ),
    # find stuck jobs
    "sweep": Counted(1, lambda store, jobs: store.blockers.sweep(1_000, None, Effects()), awaited, 1),
    # … lock the stuck jobs, close links, free, find jobs to fail
    "sweep, all stuck": Counted(5, lambda store, jobs: store.blockers.sweep(1_000, None, Effects()), stuck, 1),
}


def prepared(store, name, size):
    jobs, counted = running(store, size), STATEMENTS[name]
    expire(*jobs)
    counted.before(store, jobs)
    return counted, jobs


@pytest.mark.parametrize("size", [1, 2, 500])
@pytest.mark.parametrize("name", STATEMENTS)
def test_call_takes_a_constant_number_of_statements(store, name, size):
    counted, jobs = prepared(store, name, size)
    assert statements(store, lambda: counted.call(store, jobs)) == counted.number(store)


@committing
@pytest.mark.parametrize(
    "name", [name for name in STATEMENTS if name not in ("create, deduplicated", "create, replaced")]
)
def test_call_outside_of_a_transaction_takes_at_most_a_begin_and_a_commit_more(store, name):
    """On PostgreSQL it may also set the isolation level. Keys that other transactions have used are marked."""
    counted, jobs = prepared(store, name, 3)
    number = counted.number(store)
    with CaptureQueriesContext(store.connection) as captured:
        counted.call(store, jobs)
    levels = [query for query in captured if query["sql"].startswith("SET TRANSACTION ISOLATION LEVEL")]
    assert len(levels) <= (store.connection.vendor == "postgresql")
    assert number <= len(captured) - len(levels) <= number + 2


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_each_level_of_blockers_takes_a_constant_number_of_statements(store, levels):
    [job] = running(store)
    last = [job.id]
    for _ in range(levels):
        last = create(store, 3, MAIL, blockers=tuple(last), on_blocker_failure="fail")
    assert statements(store, lambda: store.attempts.fail([failed_try(job)])) == 3 + 5 * levels
    number = STATEMENTS["delete, cascade"].number(store) + 2 * (levels - 1)
    assert statements(store, lambda: store.chains.delete(last, cascade=True, effects=Effects())) == number


def test_every_move_is_counted():
    assert {row.move for row in TRANSITIONS} - {"free"} <= {name.split(",")[0] for name in STATEMENTS}


def statements(store, call):
    with CaptureQueriesContext(store.connection) as captured:
        call()
    return len(captured)
