"""The cost of a worker's statements does not grow with other rows in the tables.

On PostgreSQL the cost is the number of pages that ``EXPLAIN (ANALYZE, BUFFERS)`` reports, and on SQLite the number of
steps of its virtual machine. Larger indexes may have more levels.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.db import connection, transaction

from django_jobchains.declare.policies import Backoff
from django_jobchains.store import Store, get_store
from django_jobchains.store.rows import Effects
from tests.store.backlog import add, add_links, analyze, empty, forget_statistics, pretend_rows
from tests.store.planned_calls import ENDS
from tests.support.jobs import MAIL, SHIP, create, expire, running
from tests.support.plans import COMPILED_ABOVE, cost_of, estimated_cost_of, use_plans

LEASES = {SHIP: 60.0, MAIL: 60.0}
QUEUES = ["default"]
#: The additional cost that is allowed for each statement with a backlog.
FOR_THE_STATEMENT = {"postgresql": 60, "sqlite": 300}
#: The additional cost that is allowed for each job: a level or two of each index.
FOR_A_JOB = {"postgresql": 12, "sqlite": 50}
#: The divisor of the number of rows. SQLite writes them more slowly.
SHARE = {"postgresql": 1, "sqlite": 5}


class Call(NamedTuple):
    """A call, the number of jobs it is about, and a function that creates these."""

    jobs: int
    prepare: Callable[[Store], Any]
    run: Callable[[Store, Any], Any]


def _claim(limit, queues):
    def run(store, _):
        assert len(store.jobs.claim("worker", limit, LEASES, queues)) == limit

    return Call(limit, lambda store: create(store, limit + 5), run)


def _end(name, count):
    return Call(count, lambda store: running(store, count), ENDS[name])


def _reap(store, _):
    assert len(store.leases.reap(10, Backoff(), 10)) == 10


def _expire(store, _):
    assert len(store.chains.expire(10, Effects())) == 10


def _idle(run):
    return Call(0, lambda store: None, lambda store, _: run(store))


CALLS = {
    **{f"claim {limit}": _claim(limit, None) for limit in (1, 10, 50)},
    **{f"claim {limit} of a queue": _claim(limit, QUEUES) for limit in (1, 10)},
    **{f"{name} {count}": _end(name, count) for name in ENDS for count in (1, 10)},
    "reap": Call(10, lambda store: expire(*running(store, 10)), _reap),
    "reap nothing": _idle(lambda store: store.leases.reap(10, Backoff(), 10)),
    "claim nothing": _idle(lambda store: store.jobs.claim("worker", 10, LEASES)),
    "claim nothing of a queue": _idle(lambda store: store.jobs.claim("worker", 10, LEASES, QUEUES)),
    "claim nothing excluding one": _idle(lambda store: store.jobs.claim("worker", 10, LEASES, None, QUEUES)),
    "expire": Call(10, lambda store: create(store, 10, expires_seconds=-1.0), _expire),
    "expire nothing": _idle(lambda store: store.chains.expire(10, Effects())),
    "next_due": _idle(lambda store: store.jobs.next_due(LEASES)),
    "next_due of a queue": _idle(lambda store: store.jobs.next_due(LEASES, QUEUES)),
    "next_due excluding one": _idle(lambda store: store.jobs.next_due(LEASES, None, QUEUES)),
    "sweep": Call(10, lambda store: None, lambda store, _: store.blockers.sweep(10, None, Effects())),
}


def _finished(cursor, share):
    add(cursor, 30_000 // share, SHIP, "completed", 0, "-1 hour")


def _of_a_type(cursor, share):
    add(cursor, 20_000 // share, "shop.unserved", "pending", 9, "-1 hour")


def _of_types(cursor, share):
    """Create jobs of types that sort before, between and after the served types."""
    for name in ("shop.a", "shop.n", "shop.t"):
        add(cursor, 5_000 // share, name, "pending", 9, "-1 hour", types=300)


def _in_queues(cursor, share):
    add(cursor, 10_000 // share, SHIP, "pending", 9, "-1 hour", queues=1_000)


def _of_tomorrow(cursor, share):
    add(cursor, 20_000 // share, SHIP, "pending", 100, "1 day")


def _blocked(cursor, share):
    add(cursor, 10_000 // share, "shop.unserved", "pending", 0, "1 day")
    add(cursor, 10_000 // share, SHIP, "blocked", 0, "-1 hour")
    analyze(cursor)
    add_links(cursor, SHIP, "shop.unserved", is_open=True)


def _running(cursor, share):
    add(cursor, 20_000 // share, SHIP, "running", 0, "-1 hour")


BACKLOGS = {
    "finished": (_finished, [*CALLS]),
    "of a type": (_of_a_type, [*CALLS]),
    "of types": (_of_types, [*CALLS]),
    # Only calls for one queue, because a worker that serves every queue serves these jobs.
    "in queues": (_in_queues, [name for name in CALLS if name.endswith(" of a queue")]),
    "of tomorrow": (_of_tomorrow, [*CALLS]),
    "blocked": (_blocked, [*CALLS]),
    "running": (_running, [*CALLS]),
}


@pytest.fixture(scope="module")
def alone(django_db_setup, django_db_blocker):
    """The cost of each call on empty tables."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        empty(cursor)
        return {name: _cost(call) for name, call in CALLS.items()}


@pytest.mark.parametrize("backlog", BACKLOGS)
@pytest.mark.django_db(transaction=True)
def test_backlog_does_not_change_the_cost(alone, backlog):
    fill, names = BACKLOGS[backlog]
    with connection.cursor() as cursor:
        fill(cursor, SHARE[connection.vendor])
        analyze(cursor)
    _assert_flat(alone, names)


@pytest.mark.parametrize("backlog", sorted(BACKLOGS.keys() - {"blocked"}))
@pytest.mark.skipif(connection.vendor == "postgresql", reason="PostgreSQL analyzes its tables by itself")
@pytest.mark.django_db(transaction=True)
def test_sqlite_needs_no_statistics(alone, backlog):
    """SQLite has no process that runs ANALYZE."""
    fill, names = BACKLOGS[backlog]
    with connection.cursor() as cursor:
        forget_statistics(cursor)
        fill(cursor, SHARE[connection.vendor])
    _assert_flat(alone, names)


def _assert_flat(alone, names):
    beside = {name: (alone[name], _cost(CALLS[name])) for name in names}
    assert not {name: costs for name, costs in beside.items() if costs[1] > costs[0] + _allowed(CALLS[name])}


def _allowed(call):
    return FOR_THE_STATEMENT[connection.vendor] + FOR_A_JOB[connection.vendor] * call.jobs


def _cost(call):
    """Return the cost with a plan for the parameters or with PostgreSQL's generic plan, whichever is higher.

    Of two calls, the lower one counts: the first one may read the catalog, or clean up a page of an index.
    """
    modes = ("auto", "force_generic_plan") if connection.vendor == "postgresql" else ("auto",)
    return max(min(_in_transaction(mode, call, cost_of) for _ in range(2)) for mode in modes)


def _in_transaction(mode, call, cost_of):
    store = get_store()
    with transaction.atomic():
        if connection.vendor == "postgresql":
            use_plans(mode)
        prepared = call.prepare(store)
        cost = cost_of(lambda: call.run(store, prepared))
        transaction.set_rollback(True)
    return cost


@pytest.mark.parametrize("backlog", BACKLOGS)
@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_statements_are_not_compiled_for_tables_of_ten_million_rows(backlog):
    """By default, PostgreSQL compiles a statement whose estimated cost is high. That takes longer than running it."""
    fill, names = BACKLOGS[backlog]
    with connection.cursor() as cursor:
        fill(cursor, 1)
        analyze(cursor)
        pretend_rows(cursor, 10_000_000)
    costs = {name: _in_transaction("auto", CALLS[name], estimated_cost_of) for name in names}
    assert not {name: cost for name, cost in costs.items() if cost > COMPILED_ABOVE}


@pytest.mark.postgresql
@pytest.mark.django_db
def test_claim_reads_dead_index_entries_once():
    """The open transaction of the test keeps the dead entries of the jobs that it claimed."""
    store = get_store()
    use_plans("auto")
    create(store, 5_000)
    assert len(store.jobs.claim("worker", 5_000, LEASES)) == 5_000
    create(store, 3)
    pages_to_find_it = cost_of(lambda: store.jobs.next_due(LEASES))
    assert pages_to_find_it > 100
    # One of the writes may clean up an index page, which reads some hundred rows.
    assert min(cost_of(lambda: store.jobs.claim("worker", 1, LEASES)) for _ in range(3)) < 2 * pages_to_find_it
