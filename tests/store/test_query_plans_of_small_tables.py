"""Tables of some thousand rows, which PostgreSQL tends to read sequentially if a statement has many ids."""

import pytest

from django_jobchains.store import get_store
from tests.store.backlog import add, add_failed_attempts, add_links, committed_rows
from tests.store.planned_calls import CALLS, ENDS
from tests.support.jobs import SHIP, running
from tests.support.plans import assert_reads_little, plan_of, use_plans

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]


@pytest.fixture(scope="module")
def _backlog(django_db_setup, django_db_blocker):
    with committed_rows(django_db_blocker, _fill):
        yield


def _fill(cursor):
    add(cursor, 3_000, SHIP, "completed", 0, "-1 hour")
    add(cursor, 1_000, "shop.unserved", "pending", 0, "-1 hour")
    add(cursor, 1_000, "shop.blocked", "blocked", 0, "-1 hour")
    add_links(cursor, "shop.blocked", "shop.unserved", is_open=True)
    add_links(cursor, "shop.blocked", SHIP, is_open=False)
    add_failed_attempts(cursor)


@pytest.fixture(params=["auto", "force_generic_plan"])
def store(_backlog, request):
    use_plans(str(request.param))
    return get_store()


@pytest.mark.parametrize("end", ENDS)
def test_writes_of_attempts_use_indexes_of_small_tables(store, end):
    jobs = running(store, 10)
    assert_reads_little(plan_of(lambda: ENDS[end](store, jobs)), 10)


@pytest.mark.parametrize("name", CALLS)
def test_calls_about_chains_use_indexes_of_small_tables(store, name):
    prepare, call = CALLS[name]
    ids = prepare(store, 10)
    assert_reads_little(plan_of(lambda: call(store, ids)), 30)
