"""A key is found by index, however many chains have used it."""

from datetime import timedelta

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from tests.deduplication.keyed_chains import KEY, SCOPES, ship, start
from tests.queries.reading import reading_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("_history")]

HISTORY = 20_000
#: The rows that a query may read in addition to the rows it finds.
MAX_ROWS = 20
#: Thousands of steps of SQLite's virtual machine, for the same.
MAX_THOUSAND_STEPS = 2

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

MODES = ["auto", "force_generic_plan"] if connection.vendor == "postgresql" else ["auto"]
modes = pytest.mark.parametrize("mode", MODES)


@modes
@pytest.mark.parametrize("is_open", [False, True], ids=["none is open", "one is open"])
@pytest.mark.parametrize("query", QUERIES)
def test_query_reads_few_rows_by_the_index_of_keys(query, is_open, mode):
    call, finds_an_ended_one = QUERIES[query]
    first = start().id if is_open else None
    found = []
    assert_reads_little(lambda: found.append(call()), query.partition(",")[0], mode, 1)
    assert found[0].deduplicated is (finds_an_ended_one or is_open)
    assert found[0].id == first or not is_open


@modes
@pytest.mark.parametrize("scope", INDEXES)
def test_many_keys_are_found_by_index(scope, mode):
    deduplicates = (Deduplicate(f"other {n}", scope, **SCOPES[scope]) for n in range(1_000))
    items = [ship.item(deduplicate=deduplicate) for deduplicate in deduplicates]
    assert_reads_little(lambda: chains.enqueue_many(items), scope, mode, len(items))


def assert_reads_little(call, scope, mode, keys):
    reading = reading_of(call, mode)
    plan = "\n".join(reading.plan)
    assert INDEXES[scope] in plan
    assert not reading.scans, plan
    assert reading.rows <= MAX_ROWS + 3 * keys, plan
    assert reading.steps <= MAX_THOUSAND_STEPS + keys, plan
