"""Each UPDATE that moves a job names the status it moves it from, so that no lock has to be relied upon alone."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext

from django_jobchains.models import Job
from django_jobchains.statuses import TRANSITIONS, Status
from django_jobchains.store import Store
from tests.store.moves import FREEINGS, MOVES, job_with_status, waiting_with_status

pytestmark = pytest.mark.django_db

#: Writes that change nothing: they lock.
LOCKS = re.compile(r"SET (\w+) = \1 ")
GUARD = re.compile(r"job\.status( \|\| '')? (=|IN) ")


def updates(store: Store, call: Callable[[], Any]) -> list[str]:
    with CaptureQueriesContext(store.connection) as captured:
        call()
    table = f'UPDATE "{Job._meta.db_table}" AS job'  # not those of the test itself
    return [query["sql"] for query in captured if table in query["sql"] and not LOCKS.search(query["sql"])]


def assert_guarded(statements: list[str]) -> None:
    for sql in statements:
        condition = sql.rpartition("WHERE job.id")[2]
        assert GUARD.search(condition), sql


@pytest.mark.parametrize("move", [move for move in MOVES if move.method != "create"], ids=str)
def test_a_move_names_the_status_it_moves_from(store: Store, move: Any) -> None:
    source = next(row.source for row in TRANSITIONS if row.move == move.method)
    job = job_with_status(store, source or Status.PENDING, move.after)
    statements = updates(store, lambda: move.call(store, job))
    assert statements
    assert_guarded(statements)


@pytest.mark.parametrize("freeing", FREEINGS, ids=str)
def test_what_the_end_of_a_blocker_does_names_the_status_it_moves_from(store: Store, freeing: Any) -> None:
    _, blocker = waiting_with_status(store, Status.BLOCKED, freeing.policy)
    assert_guarded(updates(store, lambda: freeing.end(store, blocker)))
