"""After a conflict the store retries its own transaction, but not the caller's."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_jobchains.models import FailedAttempt
from django_jobchains.store import Store, errors
from django_jobchains.store.rows import ClaimedJob, Effects
from tests.store.contract.ends import chosen
from tests.store.methods import method, public_methods
from tests.support.connections import committing, without_autocommit
from tests.support.jobs import (
    expire,
    new_job,
    running,
    tables,
)

pytestmark = committing

Call = Callable[[Store, list[ClaimedJob]], Any]

CALLS = chosen("finish", "continue", "reschedule", "reschedule_as_asked", "fail", "reap")
#: The error codes of PostgreSQL, or None for SQLite, which has only a message.
CONFLICTS = {"deadlock": "40P01", "serialization": "40001"} if connection.vendor == "postgresql" else {"busy": None}
CONFLICT = next(iter(CONFLICTS.values()))

calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)

#: The other calls that can have their own transaction, and are not decorated with ``retried`` themselves.
OTHERS = {
    "deferred.apply": lambda store: store.deferred.apply(10, 0, Effects()),
    "keys.forget": lambda store: store.keys.forget(10),
    "last_jobs.of_jobs": lambda store: store.last_jobs.of_jobs([new_job().id]),
    "queues.limit": lambda store: store.queues.limit("default", 1),
    "queues.pause": lambda store: store.queues.pause(["default"]),
    "queues.resume": lambda store: store.queues.resume(["default"]),
}
#: Calls that are always part of a transaction that the caller ends, or of another call that is retried.
NEVER_ALONE = {
    "queues.count",
    "attempts.lock",
    "attempts.lock_all",
    "chains.complete",
    "last_jobs.lock",
    "last_jobs.lock_chain_of",
    "task_names.add_new",
}


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
        if sql.startswith(("BEGIN", "PRAGMA", "SAVEPOINT", "ROLLBACK", "RELEASE")):
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
def test_call_that_is_not_decorated_is_retried(store, call):
    with failing(1, CONFLICT):
        call(store)


def test_every_other_public_method_is_decorated(store):
    """Calls about records are tested in ``tests/records``."""
    methods = {name for name in public_methods() if "record" not in name}
    undecorated = {name for name in methods if not hasattr(method(store, name), "__wrapped__")}
    assert undecorated - NEVER_ALONE - OTHERS.keys() == {
        "attempts.fail",
        "attempts.reschedule",
        "chains.expire",
        "leases.reap",
    }


@pytest.mark.parametrize("name", ["continue", "reschedule", "fail", "reap"])
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


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL detects conflicts")
def test_one_call_waits_for_the_lock_of_another_process_only_as_long_as_any_statement(store, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {**connection.settings_dict["OPTIONS"], "timeout": 0.2})
    connection.close()
    connection.ensure_connection()
    other = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    retries = []
    monkeypatch.setattr(errors, "time", SimpleNamespace(monotonic=time.monotonic, sleep=retries.append))
    with pytest.raises(OperationalError, match="database is locked"):
        store.jobs.create([new_job()])
    other.close()
    connection.close()
    assert len(retries) <= 1  # SQLite may give up a little earlier than after its timeout.


@calls
def test_another_error_is_not_retried(store, jobs, call):
    with failing(1, "53100") as sent, pytest.raises(OperationalError):
        call(store, jobs)
    assert len(sent) == 1


@calls
@pytest.mark.parametrize("begin", [transaction.atomic, without_autocommit])
def test_in_the_transaction_of_the_caller_a_conflict_is_raised(store, jobs, call, begin):
    before = tables()
    with failing(1, CONFLICT) as sent, pytest.raises(OperationalError), begin():
        call(store, jobs)
    assert len(sent) == 1
    assert tables() == before
