"""Calls take a constant number of statements, whatever the size of the batch. One table contains the numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains.db.ids import new_id
from django_jobchains.declare.policies import Backoff
from django_jobchains.models import JobBlocker
from django_jobchains.statuses import TRANSITIONS
from django_jobchains.store import Store
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.last_jobs import LastJob
from django_jobchains.store.rows import ClaimedJob, Effects, FinishedJob, NewJob
from tests.store.methods import method
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

    def number(self, store: Store) -> int:
        return self.statements + (self.more_on_sqlite if store.connection.vendor == "sqlite" else 0)


#: A chain that a test's continuations wait for.
BLOCKER = new_id()


def blocker(store: Store, jobs: Jobs) -> None:
    create(store, 1, MAIL, id=BLOCKER)


def continued(job: ClaimedJob, **changes: Any) -> FinishedJob:
    return finished(job, None, next_job(job, **changes))


def chains(jobs: Jobs) -> list[Any]:
    return [job.id for job in jobs]


def waiting_for(jobs: Jobs, **changes: Any) -> list[NewJob]:
    """Return one new job that waits for each of these chains, and one that waits for all of them."""
    waits = [(job.id,) for job in jobs] + [tuple(chains(jobs))]
    return [new_job(MAIL, blockers=blockers, delay_seconds=60, **changes) for blockers in waits]


def awaited(store: Store, jobs: Jobs) -> None:
    store.jobs.create(waiting_for(jobs))


def awaited_with_policy_fail(store: Store, jobs: Jobs) -> None:
    store.jobs.create(waiting_for(jobs, on_blocker_failure="fail"))


def with_status(status: str) -> Call:
    return lambda store, jobs: alter(jobs, status=status)


def stuck(store: Store, jobs: Jobs) -> None:
    """Complete the jobs without freeing their dependents."""
    awaited(store, jobs)
    alter(jobs, status="completed")


def having_blockers(store: Store, jobs: Jobs) -> None:
    blockers = create(store, len(jobs), MAIL, delay_seconds=60)
    pairs = zip(jobs, blockers, strict=True)
    JobBlocker.objects.bulk_create(
        JobBlocker(job_id=job.id, position=0, blocker_id=chain_id, is_open=True) for job, chain_id in pairs
    )


def keyed(key: str, scope: Any = "incomplete") -> NewJob:
    return new_job(MAIL, deduplicate=Deduplicate(key, scope), deduplication_key=key, delay_seconds=60)


def deduplicated(store: Store, count: int, scope: Any) -> None:
    """Enqueue jobs with existing keys and as many with new ones, each of them twice."""
    keys = [f"{new}{number}" for new in ("", "new ") for number in range(count)]
    rows = store.jobs.create([keyed(key, scope) for key in keys + keys])
    assert sum(row.is_deduplicated for row in rows) == 3 * count


def cancel(store: Store, jobs: Jobs) -> Any:
    return store.chains.cancel(chains(jobs), Effects())


def last_job_of(job: ClaimedJob) -> LastJob:
    names = ("chain_type_name", "type_name", "queue", "priority", "deduplication_key")
    return LastJob(
        job.chain_id, job.id, 0, *(getattr(job, name) for name in names), status="running", lease_number=1, context=None
    )


def complete(store: Store, jobs: Jobs) -> None:
    """Complete the first chain, which all others may wait for."""
    store.chains.complete(last_job_of(jobs[0]), '"done"', None, Effects())


def awaiting_the_first(store: Store, jobs: Jobs) -> None:
    store.jobs.create([new_job(MAIL, blockers=(jobs[0].id,)) for _ in jobs])


def finish(store: Store, jobs: Jobs) -> Any:
    return store.attempts.finish([finished(job) for job in jobs])


#: The comments list the statements in their order. "…" stands for the statements of the entry before.
STATEMENTS: dict[str, Counted] = {
    "create": Counted(1, lambda store, jobs: store.jobs.create([new_job() for _ in jobs])),
    # lock the blockers' last jobs, check that they still are the last ones, insert, link, close links, free
    "create, with blockers": Counted(6, awaited, more_on_sqlite=1),
    # … and find jobs to fail
    "create, with blockers and policy fail": Counted(7, awaited_with_policy_fail, more_on_sqlite=1),
    "renew": Counted(1, lambda store, jobs: store.leases.renew([lease(job) for job in jobs])),
    "renew, all lost": Counted(
        2,
        lambda store, jobs: store.leases.renew([lease(job._replace(lease_number=9, key=(job.id, 9))) for job in jobs]),
    ),
    "check": Counted(1, lambda store, jobs: store.leases.check([job.key for job in jobs])),
    "hand_back": Counted(1, lambda store, jobs: store.attempts.hand_back([job.key for job in jobs])),
    # write, find waiting jobs
    "hand_back, all asked to stop": Counted(
        2, lambda store, jobs: store.attempts.hand_back([job.key for job in jobs]), cancel
    ),
    "lock_all": Counted(2, lambda store, jobs: store.attempts.lock_all([job.id for job in jobs]), more_on_sqlite=1),
    "log": Counted(2, lambda store, jobs: store.logs.write([entries(job, "a", progress=0.5) for job in jobs])),
    "finish": Counted(2, finish, more_on_sqlite=-1),
    "finish, locked": Counted(
        1, lambda store, jobs: store.attempts.finish([finished(job) for job in jobs], is_locked=True)
    ),
    # write, find waiting jobs, lock them, close links, free
    "finish, awaited": Counted(5, finish, awaited),
    # … and find jobs to fail
    "finish, awaited with policy fail": Counted(6, finish, awaited_with_policy_fail),
    "finish, continued": Counted(2, lambda store, jobs: store.attempts.finish([continued(job) for job in jobs])),
    # lock the last jobs, check that they still are, write; lock and check the blockers, find their blockers; insert,
    # link, close links, free
    "finish, continued with a blocker": Counted(
        10, lambda store, jobs: store.attempts.finish([continued(job, blockers=(BLOCKER,)) for job in jobs]), blocker, 2
    ),
    # record the errors, write, find jobs that wait for ended chains
    "reschedule": Counted(2, lambda store, jobs: store.attempts.reschedule([failed_try(job) for job in jobs])),
    "fail": Counted(3, lambda store, jobs: store.attempts.fail([failed_try(job) for job in jobs])),
    # … lock the waiting jobs, close links, free, find jobs to fail, find jobs that wait for these
    "fail, awaited with policy fail": Counted(
        8, lambda store, jobs: store.attempts.fail([failed_try(job) for job in jobs]), awaited_with_policy_fail
    ),
    # record the errors, write, find jobs that wait for ended chains
    "reap": Counted(2, lambda store, jobs: store.leases.reap(len(jobs), Backoff(), 10)),
    "reap, for the last time": Counted(3, lambda store, jobs: store.leases.reap(len(jobs), Backoff(), 1)),
    "lock_last_jobs": Counted(2, lambda store, jobs: store.last_jobs.lock(chains(jobs)), more_on_sqlite=1),
    "last_jobs": Counted(1, lambda store, jobs: store.last_jobs.read(chains(jobs))),
    # a savepoint and its end; write, find waiting jobs
    "complete": Counted(4, complete),
    # … lock the waiting jobs, close links, free
    "complete, awaited": Counted(7, complete, awaiting_the_first),
    # read the last jobs; a savepoint and its end, a lock timeout and its end; lock the jobs, check that they still are
    # the last ones; write
    "cancel": Counted(8 if connection.vendor == "postgresql" else 6, cancel),
    # read the last jobs, lock them, check that they still are, write, find jobs that wait for ended chains
    "cancel, pending": Counted(5, cancel, with_status("pending"), 2),
    # … lock the waiting jobs, close links, free
    "cancel, pending and awaited": Counted(
        8, cancel, lambda store, jobs: [awaited(store, jobs), alter(jobs, status="pending")], 2
    ),
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
#: The same for calls about pending jobs.
STATEMENTS_OF_PENDING: dict[str, tuple[int, Callable[[Store, int], Any]]] = {
    "claim": (1, lambda store, count: claim(store, count)),
    "claim, many types": (1, lambda store, count: claim(store, count, types=[SHIP, *map(str, range(count))])),
    "next_due": (1, lambda store, count: store.jobs.next_due({SHIP: LEASE_SECONDS})),
    "reap, nothing expired": (1, lambda store, count: store.leases.reap(count, Backoff(), 10)),
}

sizes = pytest.mark.parametrize("size", [1, 2, 500])


def prepared(store: Store, name: str, size: int) -> tuple[Counted, Jobs]:
    jobs, counted = running(store, size), STATEMENTS[name]
    expire(*jobs)
    counted.before(store, jobs)
    return counted, jobs


@sizes
@pytest.mark.parametrize("name", STATEMENTS)
def test_call_takes_a_constant_number_of_statements(store, name, size):
    counted, jobs = prepared(store, name, size)
    assert statements(store, lambda: counted.call(store, jobs)) == counted.number(store)


@sizes
@pytest.mark.parametrize("name", STATEMENTS_OF_PENDING)
def test_call_about_pending_jobs_takes_a_constant_number_of_statements(store, name, size):
    create(store, size)
    number, call = STATEMENTS_OF_PENDING[name]
    assert statements(store, lambda: call(store, size)) == number


def test_locking_or_reading_one_job_takes_one_statement(store):
    [job_id] = create(store)
    assert statements(store, lambda: store.attempts.lock(job_id)) == 1
    assert statements(store, lambda: store.jobs.state_of(job_id)) == 1


@sizes
@pytest.mark.parametrize("scope", ["incomplete", "any"])
def test_deduplicating_a_batch_takes_a_constant_number_of_statements(store, size, scope):
    """The statements lock the keys, find them, and insert."""
    store.jobs.create([keyed(str(number)) for number in range(size)])
    assert statements(store, lambda: deduplicated(store, size, scope)) == 3


@pytest.mark.parametrize("count", [1, 2, 500])
def test_one_job_with_many_blockers_takes_no_more_statements_than_with_one(store, count):
    jobs = running(store, count)
    number = STATEMENTS["create, with blockers"].number(store)
    assert statements(store, lambda: store.jobs.create([new_job(blockers=tuple(chains(jobs)))])) == number


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_each_level_of_chains_that_fail_by_a_blocker_takes_five_statements_more(store, levels):
    [job] = running(store)
    last = [job.id]
    for _ in range(levels):
        last = create(store, 3, MAIL, blockers=tuple(last), on_blocker_failure="fail")
    assert statements(store, lambda: store.attempts.fail([failed_try(job)])) == 3 + 5 * levels


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_each_level_of_blockers_takes_a_cascade_two_statements_more(store, levels):
    last = create(store, 1)
    for _ in range(levels):
        last = create(store, 1, MAIL, blockers=tuple(last))
    number = STATEMENTS["delete, cascade"].number(store) + 2 * (levels - 1)
    assert statements(store, lambda: store.chains.delete(last, cascade=True, effects=Effects())) == number


@pytest.mark.parametrize("length", [1, 2, 200])
def test_number_of_statements_does_not_depend_on_the_length_of_a_chain(store, length):
    [job] = running(store)
    store.jobs.create([next_job(job, chain_index=index, delay_seconds=60) for index in range(1, length)])
    for name in ("lock_last_jobs", "last_jobs", "cancel, pending" if length > 1 else "cancel", "delete"):
        counted = STATEMENTS[name]
        assert statements(store, lambda counted=counted: counted.call(store, [job])) - counted.number(store) in (0, 1)


BATCH_OF_ATTEMPTS = [
    "jobs.create",
    "leases.renew",
    "leases.check",
    "attempts.hand_back",
    "attempts.finish",
    "attempts.reschedule",
    "attempts.fail",
]
BATCH_OF_IDS: dict[str, Callable[[Store], Any]] = {
    "cancel": lambda store: store.chains.cancel([], Effects()),
    "retry": lambda store: store.chains.retry([], Effects()),
    "move": lambda store: store.chains.move([], None, 0, Effects()),
    "delete": lambda store: store.chains.delete([], cascade=True, effects=Effects()),
}


@pytest.mark.parametrize("name", BATCH_OF_ATTEMPTS)
def test_empty_batch_takes_no_more_statements_than_a_full_one(store, name):
    counted = STATEMENTS[name.partition(".")[2]]
    assert statements(store, lambda: method(store, name)([])) <= counted.number(store)


@pytest.mark.parametrize("name", BATCH_OF_IDS)
def test_empty_batch_of_ids_takes_no_more_statements_than_a_full_one(store, name):
    most = max(counted.number(store) for key, counted in STATEMENTS.items() if key.split(",")[0] == name)
    assert statements(store, lambda: BATCH_OF_IDS[name](store)) <= most


def test_every_move_is_counted():
    counted = {name.split(",")[0] for name in [*STATEMENTS, *STATEMENTS_OF_PENDING]}
    assert {row.move for row in TRANSITIONS} - {"free"} <= counted


@committing
@pytest.mark.parametrize("name", STATEMENTS)
def test_call_outside_of_a_transaction_takes_at_most_a_begin_and_a_commit_more(store, name):
    """On PostgreSQL it may also set the isolation level."""
    counted, jobs = prepared(store, name, 3)
    number = counted.number(store)
    with CaptureQueriesContext(store.connection) as captured:
        counted.call(store, jobs)
    levels = [query for query in captured if query["sql"].startswith("SET TRANSACTION ISOLATION LEVEL")]
    assert len(levels) <= (store.connection.vendor == "postgresql")
    assert number <= len(captured) - len(levels) <= number + 2


def statements(store: Store, call: Callable[[], Any]) -> int:
    with CaptureQueriesContext(store.connection) as captured:
        call()
    return len(captured)
