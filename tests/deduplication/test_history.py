"""A key is found by index, however many chains have used it."""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.models import Job
from tests.deduplication.keyed_chains import KEY, SCOPES, ship, start
from tests.queries.reading import reading_of
from tests.store.backlog import add, analyze, empty
from tests.support.jobs import SHIP

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("_history")]

HISTORY = 20_000
#: The rows that a query may read in addition to the rows it finds.
MAX_ROWS = 20
#: Thousands of steps of SQLite's virtual machine, for the same.
MAX_THOUSAND_STEPS = 2


@pytest.fixture(scope="module")
def _history(django_db_setup, django_db_blocker):
    """Create completed chains with the key, and as many chains with other keys, half of which are pending."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        add(cursor, HISTORY, SHIP, "completed", 0, "-1 day")
        Job.objects.update(deduplication_key=KEY, created_at=F("run_at"))
        add(cursor, HISTORY // 2, SHIP, "completed", 0, "-1 day")
        add(cursor, HISTORY // 2, SHIP, "pending", 0, "-1 day")
        analyze(cursor)
        yield
        empty(cursor)


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
    deduplicates = (Deduplicate(f"key {n}", scope, **SCOPES[scope]) for n in range(1_000))
    items = [ship.item(deduplicate=deduplicate) for deduplicate in deduplicates]
    assert_reads_little(lambda: chains.enqueue_many(items), scope, mode, len(items))


def assert_reads_little(call, scope, mode, keys):
    reading = reading_of(call, mode)
    plan = "\n".join(reading.plan)
    assert INDEXES[scope] in plan
    assert not reading.scans, plan
    assert reading.rows <= MAX_ROWS + 3 * keys, plan
    assert reading.steps <= MAX_THOUSAND_STEPS + keys, plan
