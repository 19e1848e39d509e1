"""A key is found by index, however many chains have used it."""

from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.models import Job
from tests.deduplication.keyed_chains import KEY, SCOPES, ship, start
from tests.support.plans import indexes_of, plan_of, rows_read, use_plans

pytestmark = pytest.mark.django_db

HISTORY = 20_000
#: The rows that a query may read in addition to the rows it finds.
MAX_ROWS = 20

INSERT = {
    "postgresql": "clock_timestamp() - interval '1 day' + n * interval '1 ms', clock_timestamp() "
    "FROM (SELECT n, gen_random_uuid() AS id FROM generate_series(1, %(count)s) AS n) AS d",
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', '-1 day', (n / 1000.0) || ' seconds'), "
    "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now') "
    "FROM (WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < %(count)s) "
    "SELECT n, printf('%%032x', n) AS id FROM c) AS d",
}
EMPTY = {"postgresql": "TRUNCATE django_jobchains_job CASCADE", "sqlite": "DELETE FROM django_jobchains_job"}


@pytest.fixture(scope="module")
def _history(django_db_setup, django_db_blocker):
    """Create completed chains with the key, and as many chains with other keys, half of which are pending."""
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO django_jobchains_job (id, chain_id, chain_index, chain_type_name, type_name, queue, "
                "priority, attempt, lease_number, crashes, input, output, status, deduplication_key, created_at, "
                "run_at) "
                "SELECT d.id, d.id, 0, %(type)s, %(type)s, 'default', 0, 1, 1, 0, '{}', 'null', "
                "CASE WHEN n %% 4 = 0 THEN 'pending' ELSE 'completed' END, "
                f"CASE WHEN n %% 2 = 1 THEN %(key)s ELSE 'other ' || n END, {INSERT[connection.vendor]}",
                {"type": ship.name, "key": KEY, "count": HISTORY * 2},
            )
            cursor.execute("ANALYZE django_jobchains_job")
        yield
        with connection.cursor() as cursor:
            cursor.execute(EMPTY[connection.vendor])


#: Calls that query the key, and whether they find one of the completed chains.
QUERIES = {
    "incomplete": (lambda: start(), False),
    "incomplete, in a window": (lambda: start(window=timedelta(days=7)), False),
    "any": (lambda: start(scope="any"), True),
    "any, in a window": (lambda: start(scope="any", window=timedelta(days=7)), True),
    "any, in a window that is over": (lambda: start(scope="any", window=timedelta(seconds=1)), False),
    "incomplete_or_recent": (lambda: start(scope="incomplete_or_recent", window=timedelta(days=7)), True),
    "incomplete_or_recent, none recent": (
        lambda: start(scope="incomplete_or_recent", window=timedelta(seconds=1)),
        False,
    ),
}
INDEXES = {"incomplete": "jobchains_open_key", "any": "jobchains_key", "incomplete_or_recent": "jobchains_key"}

queries = pytest.mark.parametrize("query", QUERIES)


def index_of(query):
    return INDEXES[query.partition(",")[0]]


@pytest.mark.usefixtures("_history")
class TestPostgreSQL:
    pytestmark = pytest.mark.postgresql

    @pytest.fixture(params=["auto", "force_generic_plan"], autouse=True)
    def _mode(self, request):
        use_plans(request.param)

    @queries
    def test_query_reads_few_rows_by_the_index_of_keys(self, query):
        call, finds = QUERIES[query]
        assert_reads_little(plan_of(lambda: assert_found(call(), finds)), query, MAX_ROWS)

    @queries
    def test_query_reads_few_rows_beside_an_open_chain(self, query):
        first = start()
        assert_reads_little(plan_of(lambda: assert_found(QUERIES[query][0](), True)), query, MAX_ROWS)
        assert QUERIES[query][0]().id == first.id

    @pytest.mark.parametrize("scope", INDEXES)
    def test_many_keys_are_found_by_index(self, scope):
        deduplicates = (Deduplicate(f"other {n}", scope, **SCOPES[scope]) for n in range(1_000))
        items = [ship.item(deduplicate=deduplicate) for deduplicate in deduplicates]
        assert_reads_little(plan_of(lambda: chains.enqueue_many(items)), scope, 3 * len(items))


def assert_found(chain, finds):
    assert chain.deduplicated is finds


def assert_reads_little(found, query, most):
    scans = [node for node in found if node.get("Relation Name") == Job._meta.db_table]
    assert index_of(query) in indexes_of(found)
    assert not [node["Alias"] for node in scans if node["Node Type"] == "Seq Scan"]
    assert not [(node["Node Type"], node.get("Index Name")) for node in scans if rows_read(node) > most]


@pytest.mark.usefixtures("_history")
@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite's plans")
class TestSQLite:
    @queries
    def test_query_uses_the_index_of_keys(self, query):
        call, finds = QUERIES[query]
        with sqlite_plans() as plan:
            assert call().deduplicated is finds
        [search, *_] = [line for line in plan if index_of(query) in line]
        assert "(deduplication_key=? AND chain_type_name=?" in search
        assert not [line for line in plan if line.startswith("SCAN") and not line.startswith("SCAN json_each")]
        if index_of(query) == "jobchains_key":
            assert "created_at>?" in search
            # Only the subquery of the other scope may sort, because it finds few open chains.
            assert count(plan, "TEMP B-TREE FOR ORDER BY") <= count(plan, "jobchains_open_key")


def count(plan, part):
    return sum(part in line for line in plan)


@contextmanager
def sqlite_plans():
    """Record the plans of the statements that select by key."""
    lines = []

    def explain(execute, sql, params, many, context):
        if sql.startswith("SELECT wanted"):
            with connection.cursor() as cursor:
                cursor.cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
                lines.extend(row[3] for row in cursor.cursor.fetchall())
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield lines
    assert lines
