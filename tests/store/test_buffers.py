"""What a worker's statements look at does not grow with what lies in the table beside their jobs.

Counted in pages, as ``EXPLAIN (ANALYZE, BUFFERS)`` tells them: beside a backlog as many as on empty tables, but for the
levels that larger indexes have.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from django.db import connection, transaction
from pytest_django import DjangoDbBlocker

from django_jobchains.models import Job
from django_jobchains.policies import Backoff
from django_jobchains.store import Effects, Store, get_store
from tests.store.backlog import add, add_links, analyze
from tests.store.jobs import MAIL, SHIP, claim, create, expire, running
from tests.store.planned_calls import ENDS
from tests.store.plans import buffers_of, use_plans

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]

LEASES = {SHIP: 60.0, MAIL: 60.0}
QUEUES = ["default"]
MODES = ("auto", "force_generic_plan")
#: Pages more that a statement may look at for itself,
FOR_THE_STATEMENT = 30
#: and for each of its jobs: a level or two of each index.
FOR_A_JOB = 12


class Call(NamedTuple):
    """``prepare`` makes what the call is about; ``jobs``: how many these are."""

    jobs: int
    prepare: Callable[[Store], Any]
    call: Callable[[Store, Any], Any]


def _claim(limit: int, queues: list[str] | None) -> Call:
    def call(store: Store, _: Any) -> None:
        assert len(store.claim("worker", limit, LEASES, queues)) == limit

    return Call(limit, lambda store: create(store, limit + 5), call)


def _end(name: str, count: int) -> Call:
    return Call(count, lambda store: running(store, count), ENDS[name])


def _reap(store: Store, _: Any) -> None:
    assert len(store.reap(10, Backoff(), 10)) == 10


CALLS = {
    **{f"claim {limit}": _claim(limit, None) for limit in (1, 10, 50)},
    **{f"claim {limit} of a queue": _claim(limit, QUEUES) for limit in (1, 10)},
    **{f"{name} {count}": _end(name, count) for name in ENDS for count in (1, 10)},
    "claim when nothing is due": Call(0, lambda store: None, lambda store, _: claim(store, 10)),
    "next_due": Call(0, lambda store: create(store), lambda store, _: store.next_due(LEASES)),
    "next_due of a queue": Call(0, lambda store: create(store), lambda store, _: store.next_due(LEASES, QUEUES)),
    "next_due but for a queue": Call(
        0, lambda store: create(store), lambda store, _: store.next_due(LEASES, None, QUEUES)
    ),
    "reap": Call(10, lambda store: expire(*running(store, 10)), _reap),
    "reap when nothing is expired": Call(0, lambda store: None, lambda store, _: store.reap(10, Backoff(), 10)),
    "sweep": Call(10, lambda store: None, lambda store, _: store.sweep(10, None, Effects())),
}


def _add_blocked(cursor: Any) -> None:
    add(cursor, 10_000, "shop.unserved", "pending", 0, "1 day")
    add(cursor, 10_000, SHIP, "blocked", 0, "-1 hour")
    analyze(cursor)
    add_links(cursor, SHIP, "shop.unserved", is_open=True)


BACKLOGS: dict[str, Callable[[Any], None]] = {
    "finished": lambda cursor: add(cursor, 30_000, SHIP, "completed", 0, "-1 hour"),
    "a type": lambda cursor: add(cursor, 20_000, "shop.unserved", "pending", 9, "-1 hour"),
    "types": lambda cursor: add(cursor, 10_000, "shop.other_", "pending", 9, "-1 hour", types=1_000),
    "tomorrow": lambda cursor: add(cursor, 20_000, SHIP, "pending", 100, "1 day"),
    "blocked": _add_blocked,
    "running": lambda cursor: add(cursor, 20_000, SHIP, "running", 0, "-1 hour"),
}


@pytest.fixture(scope="module", params=BACKLOGS)
def alone(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Any]:
    """The pages of each call on empty tables; then the backlog lies there."""
    with django_db_blocker.unblock():
        if connection.vendor != "postgresql":
            yield None
            return
        _empty()
        pages = {(name, mode): _pages(call, mode) for name, call in CALLS.items() for mode in MODES}
        _empty()
        with connection.cursor() as cursor:
            BACKLOGS[request.param](cursor)
            analyze(cursor)
        yield pages
        _empty()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_a_backlog_costs_no_pages(alone: dict[tuple[str, str], int], name: str, mode: str) -> None:
    call = CALLS[name]
    assert _pages(call, mode) <= alone[name, mode] + FOR_THE_STATEMENT + FOR_A_JOB * call.jobs


def _pages(call: Call, mode: str) -> int:
    with transaction.atomic():
        use_plans(mode)
        store = get_store()
        prepared = call.prepare(store)
        pages = buffers_of(lambda: call.call(store, prepared))
        transaction.set_rollback(True)
    return pages


def _empty() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {Job._meta.db_table} CASCADE")
        analyze(cursor)
