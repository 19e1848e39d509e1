"""Each UPDATE that changes the status of a job has a condition on its old status, in addition to any lock."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext

from django_jobchains.models import Job
from django_jobchains.statuses import TRANSITIONS, Status
from django_jobchains.store import Store
from tests.store.contract.moves import FREEINGS, MOVES, job_with_status, waiting_with_status

pytestmark = pytest.mark.django_db

#: Writes that lock a row and change nothing.
LOCKS = re.compile(r"SET (\w+) = \1 ")
GUARD = re.compile(r"job\.status( \|\| '')? (=|IN) ")


def updates(store: Store, call: Callable[[], Any]) -> list[str]:
    with CaptureQueriesContext(store.connection) as captured:
        call()
    table = f'UPDATE "{Job._meta.db_table}" AS job'  # not the statements of the test itself
    return [query["sql"] for query in captured if table in query["sql"] and not LOCKS.search(query["sql"])]


def assert_guarded(statements: list[str]) -> None:
    for sql in statements:
        condition = sql.rpartition("WHERE job.id")[2]
        assert GUARD.search(condition), sql


@pytest.mark.parametrize("move", [move for move in MOVES if move.method != "create"], ids=str)
def test_move_has_a_condition_on_the_old_status(store, move):
    source = next(row.source for row in TRANSITIONS if row.move == move.method)
    job = job_with_status(store, source or Status.PENDING, move.before)
    statements = updates(store, lambda: move.call(store, job))
    assert statements
    assert_guarded(statements)


@pytest.mark.parametrize("freeing", FREEINGS, ids=str)
def test_end_of_a_blocker_has_a_condition_on_the_old_status(store, freeing):
    _, blocker = waiting_with_status(store, Status.BLOCKED, freeing.policy)
    assert_guarded(updates(store, lambda: freeing.end(store, blocker)))
