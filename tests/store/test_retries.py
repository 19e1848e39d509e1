"""After a conflict the store tries its own transaction again; the caller's it leaves to the caller."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection, transaction

from django_jobchains.models import FailedAttempt
from django_jobchains.policies import Backoff
from django_jobchains.store import (
    Beat,
    ClaimedJob,
    Effects,
    Ended,
    EndedAttempt,
    Place,
    Said,
    SaidLine,
    Store,
    TypeTally,
)
from tests.store.connections import committing
from tests.store.jobs import (
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

CALLS: dict[str, Call] = {
    "finish": lambda store, jobs: store.finish([finished(job) for job in jobs]),
    "continue": lambda store, jobs: store.finish([finished(job, None, next_job(job)) for job in jobs]),
    "reschedule": lambda store, jobs: store.reschedule([failed_try(job) for job in jobs]),
    "fail": lambda store, jobs: store.fail([failed_try(job) for job in jobs]),
    "reap": lambda store, jobs: store.reap(10, Backoff(), 10),
}
#: What PostgreSQL's driver or SQLite says.
CONFLICTS: dict[str, str | None] = (
    {"deadlock": "40P01", "serialization": "40001"} if connection.vendor == "postgresql" else {"busy": None}
)
CONFLICT = next(iter(CONFLICTS.values()))

calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)

#: The other calls of the store that can be a transaction of their own.
OTHERS: dict[str, Call] = {
    "activity": lambda store, jobs: store.activity(),
    "apply_deferred": lambda store, jobs: store.apply_deferred(10, 0, Effects()),
    "add_counts": lambda store, jobs: store.add_counts([TypeTally(SHIP, 0, 1, 0, 0, 1, 1)]),
    "beat": lambda store, jobs: store.beat(BEAT),
    "cancel": lambda store, jobs: store.cancel(ids(jobs), Effects()),
    "chain_type_names": lambda store, jobs: store.chain_type_names(10),
    "check": lambda store, jobs: store.check([lease(job) for job in jobs]),
    "claim": lambda store, jobs: claim(store),
    "count_workers": lambda store, jobs: store.count_workers(),
    "counts_by_time": lambda store, jobs: store.counts_by_time(NOW),
    "counts_by_type": lambda store, jobs: store.counts_by_type(NOW, 10),
    "create": lambda store, jobs: store.create([new_job()]),
    "defer": lambda store, jobs: store.defer([EndedAttempt("handed_back", lease(job)) for job in jobs]),
    "delete": lambda store, jobs: store.delete(ids(jobs), cascade=False, effects=Effects()),
    "failing_groups": lambda store, jobs: store.failing_groups(60),
    "find_ended": lambda store, jobs: store.find_ended(
        "status", "completed", Place(ids(jobs)[0]), ids(jobs)[1], 9, OLD
    ),
    "forget_keys": lambda store, jobs: store.forget_keys(10),
    "hand_back": lambda store, jobs: store.hand_back([lease(job) for job in jobs]),
    "has_failed": lambda store, jobs: store.has_failed(jobs[0].key),
    "held_groups": lambda store, jobs: store.held_groups(10),
    "leave": lambda store, jobs: store.leave("worker"),
    "limit_queue": lambda store, jobs: store.limit_queue("default", 1),
    "look": lambda store, jobs: store.look(ids(jobs)[0]),
    "move": lambda store, jobs: store.move([], None, 60, Effects()),
    "next_due": lambda store, jobs: store.next_due({SHIP: 60}),
    "pause_queues": lambda store, jobs: store.pause_queues(["default"]),
    "pending_groups": lambda store, jobs: store.pending_groups(10),
    "present_workers": lambda store, jobs: store.present_workers(),
    "prune": lambda store, jobs: store.prune(ids(jobs), OLD),
    "prune_counts": lambda store, jobs: store.prune_counts(),
    "prune_workers": lambda store, jobs: store.prune_workers(),
    "queue_rules": lambda store, jobs: store.queue_rules(),
    "renew": lambda store, jobs: store.renew([lease(job) for job in jobs]),
    "resume_queues": lambda store, jobs: store.resume_queues(["default"]),
    "retry": lambda store, jobs: store.retry(ids(jobs), Effects()),
    "say": lambda store, jobs: store.say([Said(*job.key, 1, [SaidLine(0, 0, 20, "said", None)]) for job in jobs]),
    "sweep": lambda store, jobs: store.sweep(10, None, Effects()),
    "tails": lambda store, jobs: store.tails(ids(jobs)),
    "time_ago": lambda store, jobs: store.time_ago(1),
    "type_names": lambda store, jobs: store.type_names(10),
}
#: Calls that are always part of a transaction that somebody else ends, and what sends no statement about rows.
NEVER_ALONE = {"complete", "lock", "lock_all", "lock_tails"}
NOT_A_CALL = {"is_out_of_time", "prepare_for_workers", "reads_within", "transaction", "waits_at_most"}

BEAT = Beat("worker", "host", 1, "1", 1, 0, 0, None, (SHIP,), False, 1.0, 10.0)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD = Ended(("completed",), NOW)


def ids(jobs: list[ClaimedJob]) -> list[UUID]:
    return [job.id for job in jobs]


class DriverError(Exception):
    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("database is locked" if sqlstate is None else "conflict")
        self.sqlstate = sqlstate


@contextmanager
def failing(times: int, sqlstate: str | None, statement: int = 1) -> Iterator[list[str]]:
    """The n-th statement of each of the first tries fails; gives the statements that were sent."""
    sent: list[str] = []
    state = {"left": times, "statement": 0}

    def execute(execute: Any, sql: str, *args: Any) -> Any:
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
def jobs(store: Store) -> list[ClaimedJob]:
    jobs = running(store, 2)
    expire(*jobs)
    return jobs


@calls
@pytest.mark.parametrize("sqlstate", CONFLICTS.values(), ids=CONFLICTS)
def test_a_conflict_is_tried_again(store: Store, jobs: list[ClaimedJob], call: Call, sqlstate: str | None) -> None:
    with failing(2, sqlstate):
        assert len(call(store, jobs)) == 2


@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("sqlstate", CONFLICTS.values(), ids=CONFLICTS)
def test_every_other_call_is_tried_again_too(
    store: Store, jobs: list[ClaimedJob], call: Call, sqlstate: str | None
) -> None:
    with failing(1, sqlstate):
        call(store, jobs)


def test_every_public_method_of_the_store_is_tried_here() -> None:
    methods = {name for name in dir(Store) if not name.startswith("_") and callable(getattr(Store, name))}
    assert methods - NEVER_ALONE - NOT_A_CALL == {*CALLS, *OTHERS} - {"continue"}


@pytest.mark.parametrize("name", ["continue", "reschedule", "fail", "reap"])
def test_a_conflict_in_the_middle_tries_the_whole_transaction_again(
    store: Store, jobs: list[ClaimedJob], name: str
) -> None:
    with failing(1, CONFLICT, statement=2):
        assert len(CALLS[name](store, jobs)) == 2
    assert FailedAttempt.objects.count() == (0 if name == "continue" else 2)


@calls
def test_a_conflict_that_stays_is_raised_and_changes_nothing(store: Store, jobs: list[ClaimedJob], call: Call) -> None:
    before = tables()
    with failing(1_000, CONFLICT) as sent, pytest.raises(OperationalError):
        call(store, jobs)
    assert 2 <= len(sent) <= 10
    assert tables() == before


@calls
def test_another_error_is_not_tried_again(store: Store, jobs: list[ClaimedJob], call: Call) -> None:
    with failing(1, "53100") as sent, pytest.raises(OperationalError):
        call(store, jobs)
    assert len(sent) == 1


@calls
def test_in_the_callers_transaction_a_conflict_is_the_callers(store: Store, jobs: list[ClaimedJob], call: Call) -> None:
    before = tables()
    with failing(1, CONFLICT) as sent, pytest.raises(OperationalError), transaction.atomic():
        call(store, jobs)
    assert len(sent) == 1
    assert tables() == before
