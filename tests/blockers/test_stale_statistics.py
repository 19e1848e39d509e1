"""Statistics of when the tables were nearly empty, as autovacuum leaves them between two bursts: nobody looks at every
job for every link."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.models import Job, JobBlocker
from django_jobchains.store import Effects, Store, get_store
from tests.blockers.kinds import FAILS, STEP, WAITS, started
from tests.store.jobs import failed_try, finished
from tests.store.plans import plan_of, rows_read, use_plans

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]

#: More than a table holds that is rather read than looked up in.
DEPENDENTS = 2_000
#: Rows that a part of a plan may read for each dependent.
MOST_FOR_EACH = 5


@pytest.fixture(params=["auto", "force_generic_plan"])
def store(request: pytest.FixtureRequest) -> Store:
    with connection.cursor() as cursor:
        for table in (Job._meta.db_table, JobBlocker._meta.db_table):
            cursor.execute("UPDATE pg_class SET reltuples = 0, relpages = 300 WHERE relname = %s", [table])
    use_plans(str(request.param))
    return get_store()


def enqueue(kind: Any, blocker: Chain) -> None:
    chains.enqueue_many([kind.item(blockers=[blocker]) for _ in range(DEPENDENTS)])


def assert_reads_each_once(call: Callable[[], Any]) -> None:
    """Of a bitmap the heap scan above it tells: the index scan counts what earlier tests left and no vacuum took."""
    told = [node for node in plan_of(call) if node["Node Type"] != "Bitmap Index Scan"]
    wrong = [node for node in told if rows_read(node) > MOST_FOR_EACH * DEPENDENTS]
    assert not wrong, [(node["Node Type"], node.get("Index Name"), rows_read(node)) for node in wrong]


@pytest.mark.parametrize("kind", [WAITS, FAILS], ids=["waits", "fails"])
def test_when_many_are_enqueued(store: Store, kind: Any) -> None:
    blocker = STEP.enqueue()
    assert_reads_each_once(lambda: enqueue(kind, blocker))
    assert Job.objects.filter(status="blocked").count() == DEPENDENTS


def test_when_many_are_freed(store: Store) -> None:
    blocker = STEP.enqueue()
    enqueue(WAITS, blocker)
    [job] = started(store, blocker)
    assert_reads_each_once(lambda: store.finish([finished(job)]))
    assert Job.objects.filter(status="pending").count() == DEPENDENTS


def test_when_many_fail(store: Store) -> None:
    blocker = STEP.enqueue()
    enqueue(FAILS, blocker)
    [job] = started(store, blocker)
    assert_reads_each_once(lambda: store.fail([failed_try(job)], Effects()))
    assert Job.objects.filter(status="failed").count() == DEPENDENTS + 1
