"""A constant number of statements, whatever the batch. The numbers stand in one table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains.deduplication import Deduplicate
from django_jobchains.ids import new_id
from django_jobchains.models import JobBlocker
from django_jobchains.policies import Backoff
from django_jobchains.statuses import TRANSITIONS
from django_jobchains.store import ClaimedJob, Effects, FinishedJob, NewJob, Store, Tail
from tests.store.connections import committing
from tests.store.jobs import (
    LEASE_SECONDS,
    MAIL,
    SHIP,
    alter,
    claim,
    create,
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
    """A call about running jobs whose leases ran out, and its statements, BEGIN and COMMIT left out.

    ``before``: what is done to the jobs first. ``more_on_sqlite``: writes of nothing, before what reads first.
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
    """Jobs that wait for one chain each, and one that waits for all of them."""
    waits = [(job.id,) for job in jobs] + [tuple(chains(jobs))]
    return [new_job(MAIL, blockers=blockers, delay_seconds=60, **changes) for blockers in waits]


def awaited(store: Store, jobs: Jobs) -> None:
    store.create(waiting_for(jobs))


def awaited_by_who_fails(store: Store, jobs: Jobs) -> None:
    store.create(waiting_for(jobs, on_blocker_failure="fail"))


def with_status(status: str) -> Call:
    return lambda store, jobs: alter(jobs, status=status)


def stuck(store: Store, jobs: Jobs) -> None:
    """Nobody freed their dependents."""
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
    """Some with keys that are taken, as many with new ones, each of them twice."""
    keys = [f"{new}{number}" for new in ("", "new ") for number in range(count)]
    rows = store.create([keyed(key, scope) for key in keys + keys])
    assert sum(row.is_deduplicated for row in rows) == 3 * count


def cancel(store: Store, jobs: Jobs) -> Any:
    return store.cancel(chains(jobs), Effects())


def tail_of(job: ClaimedJob) -> Tail:
    names = ("chain_type_name", "type_name", "queue", "priority", "deduplication_key")
    return Tail(
        job.chain_id, job.id, 0, *(getattr(job, name) for name in names), status="running", lease_number=1, context=None
    )


def complete(store: Store, jobs: Jobs) -> None:
    """Of one chain that all the others wait for, if any do."""
    store.complete(tail_of(jobs[0]), '"done"', None, Effects())


def awaiting_the_first(store: Store, jobs: Jobs) -> None:
    store.create([new_job(MAIL, blockers=(jobs[0].id,)) for _ in jobs])


def finish(store: Store, jobs: Jobs) -> Any:
    return store.finish([finished(job) for job in jobs])


#: What each statement is for stands in the order they are run.
STATEMENTS: dict[str, Counted] = {
    "create": Counted(1, lambda store, jobs: store.create([new_job() for _ in jobs])),
    # lock the blockers' last jobs, look whether they still are, insert, link, close links, free
    "create, with blockers": Counted(6, awaited, more_on_sqlite=1),
    # … and look who fails
    "create, with blockers, and who may fail": Counted(7, awaited_by_who_fails, more_on_sqlite=1),
    "renew": Counted(1, lambda store, jobs: store.renew([lease(job) for job in jobs])),
    "renew, all lost": Counted(
        2, lambda store, jobs: store.renew([lease(job._replace(lease_number=9)) for job in jobs])
    ),
    "check": Counted(1, lambda store, jobs: store.check([lease(job) for job in jobs])),
    "hand_back": Counted(1, lambda store, jobs: store.hand_back([lease(job) for job in jobs])),
    # write, look who waits
    "hand_back, all asked to stop": Counted(
        2, lambda store, jobs: store.hand_back([lease(job) for job in jobs]), cancel
    ),
    "finish": Counted(2, finish),
    "finish, locked": Counted(1, lambda store, jobs: store.finish([finished(job) for job in jobs], is_locked=True)),
    # write, look who waits, lock them, close links, free
    "finish, awaited": Counted(5, finish, awaited),
    # … and look who fails
    "finish, awaited by who may fail": Counted(6, finish, awaited_by_who_fails),
    "finish, continued": Counted(2, lambda store, jobs: store.finish([continued(job) for job in jobs])),
    # lock the last jobs, look whether they still are, write; the same of the blockers, look what they wait for; insert,
    # link, close links, free
    "finish, continued with a blocker": Counted(
        10, lambda store, jobs: store.finish([continued(job, blockers=(BLOCKER,)) for job in jobs]), blocker, 2
    ),
    # keep the errors, write, look who waits for those that ended
    "reschedule": Counted(2, lambda store, jobs: store.reschedule([failed_try(job) for job in jobs])),
    "fail": Counted(3, lambda store, jobs: store.fail([failed_try(job) for job in jobs])),
    # … lock those who wait, close links, free, look who fails, look who waits for these
    "fail, awaited by who fails": Counted(
        8, lambda store, jobs: store.fail([failed_try(job) for job in jobs]), awaited_by_who_fails
    ),
    # keep the errors, write, look who waits for those that ended
    "reap": Counted(2, lambda store, jobs: store.reap(len(jobs), Backoff(), 10)),
    "reap, for the last time": Counted(3, lambda store, jobs: store.reap(len(jobs), Backoff(), 1)),
    "lock_tails": Counted(2, lambda store, jobs: store.lock_tails(chains(jobs)), more_on_sqlite=1),
    "tails": Counted(1, lambda store, jobs: store.tails(chains(jobs))),
    # a savepoint and its end; write, look who waits
    "complete": Counted(4, complete),
    # … lock those who wait, close links, free
    "complete, awaited": Counted(7, complete, awaiting_the_first),
    # read the last jobs; a savepoint and its end, a limit on waiting and its end; lock the jobs, look whether they are
    # still the last; write
    "cancel": Counted(8 if connection.vendor == "postgresql" else 6, cancel),
    # read the last jobs, lock them, look whether they still are, write, look who waits for those that ended
    "cancel, pending": Counted(5, cancel, with_status("pending"), 2),
    # … lock those who wait, close links, free
    "cancel, pending and awaited": Counted(
        8, cancel, lambda store, jobs: [awaited(store, jobs), alter(jobs, status="pending")], 2
    ),
    # lock, write, forget requests to cancel
    "retry": Counted(3, lambda store, jobs: store.retry(chains(jobs), Effects()), with_status("failed"), 1),
    # lock, write
    "move": Counted(2, lambda store, jobs: store.move(chains(jobs), None, 60, Effects()), with_status("pending"), 1),
    # lock the last jobs, look whether they still are, look for references, delete from five tables, and links twice
    "delete": Counted(
        9, lambda store, jobs: store.delete(chains(jobs), cascade=False, effects=Effects()), more_on_sqlite=1
    ),
    # … look for blockers before and after the lock, and for theirs, which there are not
    "delete, cascade": Counted(
        13, lambda store, jobs: store.delete(chains(jobs), cascade=True, effects=Effects()), having_blockers, 2
    ),
    # look at some
    "sweep": Counted(1, lambda store, jobs: store.sweep(1_000, None, Effects()), awaited, 1),
    # … lock those that are stuck, close links, free, look who fails
    "sweep, all stuck": Counted(5, lambda store, jobs: store.sweep(1_000, None, Effects()), stuck, 1),
}
#: The same of calls that need no running job, with so many pending ones.
STATEMENTS_OF_PENDING: dict[str, tuple[int, Callable[[Store, int], Any]]] = {
    "claim": (1, lambda store, count: claim(store, count)),
    "claim, many types": (1, lambda store, count: claim(store, count, types=[SHIP, *map(str, range(count))])),
    "next_due": (1, lambda store, count: store.next_due({SHIP: LEASE_SECONDS})),
    "reap, nothing expired": (1, lambda store, count: store.reap(count, Backoff(), 10)),
}

sizes = pytest.mark.parametrize("size", [1, 2, 500])


def prepared(store: Store, name: str, size: int) -> tuple[Counted, Jobs]:
    jobs, counted = running(store, size), STATEMENTS[name]
    expire(*jobs)
    counted.before(store, jobs)
    return counted, jobs


@sizes
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_call_takes_a_constant_number_of_statements(store: Store, name: str, size: int) -> None:
    counted, jobs = prepared(store, name, size)
    assert statements(store, lambda: counted.call(store, jobs)) == counted.number(store)


@sizes
@pytest.mark.parametrize("name", STATEMENTS_OF_PENDING)
def test_a_call_about_pending_jobs_takes_a_constant_number_of_statements(store: Store, name: str, size: int) -> None:
    create(store, size)
    number, call = STATEMENTS_OF_PENDING[name]
    assert statements(store, lambda: call(store, size)) == number


def test_lock_and_look_take_one_statement(store: Store) -> None:
    [job_id] = create(store)
    assert statements(store, lambda: store.lock(job_id)) == 1
    assert statements(store, lambda: store.look(job_id)) == 1


@sizes
@pytest.mark.parametrize("scope", ["incomplete", "any"])
def test_deduplicating_a_batch_takes_a_constant_number_of_statements(store: Store, size: int, scope: str) -> None:
    """Lock the keys, find them, insert."""
    store.create([keyed(str(number)) for number in range(size)])
    assert statements(store, lambda: deduplicated(store, size, scope)) == 3


@pytest.mark.parametrize("count", [1, 2, 500])
def test_one_job_with_many_blockers_takes_no_more_statements_than_with_one(store: Store, count: int) -> None:
    jobs = running(store, count)
    number = STATEMENTS["create, with blockers"].number(store)
    assert statements(store, lambda: store.create([new_job(blockers=tuple(chains(jobs)))])) == number


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_each_level_of_chains_that_fail_by_a_blocker_takes_five_statements_more(store: Store, levels: int) -> None:
    [job] = running(store)
    last = [job.id]
    for _ in range(levels):
        last = create(store, 3, MAIL, blockers=tuple(last), on_blocker_failure="fail")
    assert statements(store, lambda: store.fail([failed_try(job)])) == 3 + 5 * levels


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_each_level_of_blockers_costs_a_cascade_two_statements_more(store: Store, levels: int) -> None:
    last = create(store, 1)
    for _ in range(levels):
        last = create(store, 1, MAIL, blockers=tuple(last))
    number = STATEMENTS["delete, cascade"].number(store) + 2 * (levels - 1)
    assert statements(store, lambda: store.delete(last, cascade=True, effects=Effects())) == number


@pytest.mark.parametrize("length", [1, 2, 200])
def test_the_length_of_a_chain_costs_no_statement(store: Store, length: int) -> None:
    [job] = running(store)
    store.create([next_job(job, chain_index=index, delay_seconds=60) for index in range(1, length)])
    for name in ("lock_tails", "tails", "cancel, pending" if length > 1 else "cancel", "delete"):
        counted = STATEMENTS[name]
        assert statements(store, lambda counted=counted: counted.call(store, [job])) - counted.number(store) in (0, 1)


BATCH_OF_ATTEMPTS = ["create", "renew", "check", "hand_back", "finish", "reschedule", "fail"]
BATCH_OF_IDS: dict[str, Callable[[Store], Any]] = {
    "cancel": lambda store: store.cancel([], Effects()),
    "retry": lambda store: store.retry([], Effects()),
    "move": lambda store: store.move([], None, 0, Effects()),
    "delete": lambda store: store.delete([], cascade=True, effects=Effects()),
}


@pytest.mark.parametrize("name", BATCH_OF_ATTEMPTS)
def test_an_empty_batch_takes_no_more_than_a_full_one(store: Store, name: str) -> None:
    assert statements(store, lambda: getattr(store, name)([])) <= STATEMENTS[name].number(store)


@pytest.mark.parametrize("name", BATCH_OF_IDS)
def test_an_empty_batch_of_ids_takes_no_more_than_a_full_one(store: Store, name: str) -> None:
    most = max(counted.number(store) for key, counted in STATEMENTS.items() if key.split(",")[0] == name)
    assert statements(store, lambda: BATCH_OF_IDS[name](store)) <= most


def test_every_move_is_counted_here() -> None:
    counted = {name.split(",")[0] for name in [*STATEMENTS, *STATEMENTS_OF_PENDING]}
    assert {row.move for row in TRANSITIONS} - {"free"} <= counted


@committing
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_transaction_of_its_own_costs_a_begin_and_a_commit_at_most(store: Store, name: str) -> None:
    """And, where it has to see what others have committed meanwhile, the word for that."""
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
