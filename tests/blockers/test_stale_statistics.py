"""With statistics from nearly empty tables, as autovacuum leaves them, no statement reads all jobs for each link."""

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.models import Job, JobBlocker
from django_jobchains.store import get_store
from django_jobchains.store.rows import Effects
from tests.blockers.chains import FAILS, STEP, WAITS, claim_only
from tests.support.jobs import failed_try, finished
from tests.support.plans import plan_of, rows_read, use_plans

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]

#: Enough that PostgreSQL would not prefer a sequential scan.
DEPENDENTS = 2_000
#: The rows that a node of a plan may read for each dependent.
MAX_FOR_EACH = 5


@pytest.fixture(params=["auto", "force_generic_plan"])
def store(request):
    with connection.cursor() as cursor:
        for table in (Job._meta.db_table, JobBlocker._meta.db_table):
            cursor.execute("UPDATE pg_class SET reltuples = 0, relpages = 300 WHERE relname = %s", [table])
    use_plans(str(request.param))
    return get_store()


def enqueue(kind, blocker):
    chains.enqueue_many([kind.item(blockers=[blocker]) for _ in range(DEPENDENTS)])


def assert_reads_each_once(call):
    """Check every node of the plans. Bitmap index scans do not count: they include dead rows of earlier tests."""
    counted = [node for node in plan_of(call) if node["Node Type"] != "Bitmap Index Scan"]
    wrong = [node for node in counted if rows_read(node) > MAX_FOR_EACH * DEPENDENTS]
    assert not wrong, [(node["Node Type"], node.get("Index Name"), rows_read(node)) for node in wrong]


@pytest.mark.parametrize("kind", [WAITS, FAILS], ids=["waits", "fails"])
def test_many_enqueued_dependents_do_not_read_whole_tables(store, kind):
    blocker = STEP.enqueue()
    assert_reads_each_once(lambda: enqueue(kind, blocker))
    assert Job.objects.filter(status="blocked").count() == DEPENDENTS


def test_many_freed_dependents_do_not_read_whole_tables(store):
    blocker = STEP.enqueue()
    enqueue(WAITS, blocker)
    [job] = claim_only(store, blocker)
    assert_reads_each_once(lambda: store.attempts.finish([finished(job)]))
    assert Job.objects.filter(status="pending").count() == DEPENDENTS


def test_many_failed_dependents_do_not_read_whole_tables(store):
    blocker = STEP.enqueue()
    enqueue(FAILS, blocker)
    [job] = claim_only(store, blocker)
    assert_reads_each_once(lambda: store.attempts.fail([failed_try(job)], Effects()))
    assert Job.objects.filter(status="failed").count() == DEPENDENTS + 1
