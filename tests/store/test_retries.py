"""After a conflict the store tries its own transaction again; the caller's it leaves to the caller."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_jobchains.models import FailedAttempt
from django_jobchains.policies import Backoff
from django_jobchains.store import ClaimedJob, Store
from tests.store.connections import committing
from tests.store.jobs import expire, failed_try, finished, next_job, running, tables

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
