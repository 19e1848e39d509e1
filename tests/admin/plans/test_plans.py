"""No page of the admin reads or sorts a whole table: the number of rows it reads depends on how many it shows.

This excludes the count of a list, which reads up to 10,000 rows, of chains with all their steps, and has a time limit.

The pages are those that ``benchmarks.admin`` measures with ten million jobs.
"""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.http import HttpRequest
from django.test.utils import CaptureQueriesContext

from benchmarks.admin.jobs import RARE_FAILURES
from benchmarks.admin.sizes import COMMON
from benchmarks.admin.visiting import Visit
from benchmarks.admin.visits import RELIABLE, all_visits
from django_jobchains.admin import ChainAdmin, JobAdmin
from django_jobchains.admin.lists import changelists
from django_jobchains.models import Chain, Job
from django_jobchains.store import get_store
from tests.admin.plans.conftest import JOBS
from tests.admin.plans.reading import reading_of
from tests.support.plans import nodes, plans

Choices = dict[tuple[type, str], set[str]]

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db]

#: The largest numbers of rows that one node of a plan may read from a table, and sort.
MAX_ROWS = 12_000
MAX_SORTED = 2_500
VISITS = list(all_visits())
LISTS = [visit for visit in VISITS if visit.group.startswith("List of")]
PAGES = [visit for visit in VISITS if visit not in LISTS]
#: Lists whose whole page is rendered: plain, filtered, searched, and a later page. For other lists, only rows are read.
RENDERED = {
    "all",
    "the most common type, failed (4 of them)",
    "a prefix of 15 types",
    "deduplication key",
    "open, far from the first page",
}
#: The first statements of every request.
OF_MIDDLEWARE = ('SELECT "django_session"', 'SELECT "auth_user"')
#: Visits that show chains or jobs of all types.
NARROWED = [visit for visit in VISITS if visit.group != "Actions"]


def statements_of(call: Callable[[], object]) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        call()
    statements = (query["sql"] for query in captured.captured_queries)
    return [sql for sql in statements if "SAVEPOINT" not in sql and not sql.startswith(OF_MIDDLEWARE)]


def parametrized(visits: list[Visit]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("visit", visits, ids=[f"{visit.group}: {visit.name}" for visit in visits])


@pytest.fixture(autouse=True)
def _without_counts(monkeypatch):
    monkeypatch.setattr(changelists, "count_rows", lambda rows, shown: shown)


def test_the_tables_are_large_enough_for_realistic_plans(places):
    assert Job.objects.count() > JOBS * 0.95


@pytest.fixture(scope="module")
def choices():
    """The choices of filters where rows are hidden, by class and method. The first test fills them."""
    return {}


def assert_reads_little(call: Callable[[], object]) -> None:
    reading = reading_of(call)
    assert not reading.scans, reading.plan
    assert reading.rows < MAX_ROWS, reading.plan
    assert reading.sorted_rows < MAX_SORTED, reading.plan


@parametrized(PAGES)
def test_a_page_reads_few_rows_more_than_it_shows(visit, browser, places):
    responses = []
    assert_reads_little(lambda: responses.append(visit.request(browser, places)))
    assert responses[0].status_code == visit.status


@parametrized(LISTS)
def test_a_list_reads_few_rows_more_than_it_shows(visit, lists, places):
    assert_reads_little(lambda: visit.request(lists, places))


@parametrized([visit for visit in LISTS if visit.name in RENDERED])
def test_the_page_of_a_list_runs_the_same_statements_as_its_rows(visit, browser, lists, places):
    """Only reading the rows takes statements that are specific to a list; middleware and templates add none."""
    read = statements_of(lambda: visit.request(lists, places))
    assert statements_of(lambda: visit.request(browser, places)) == read


@pytest.mark.parametrize("model", [Chain, Job])
@pytest.mark.parametrize("type_name", [COMMON, RELIABLE])
def test_failed_jobs_of_a_common_type_use_an_index(places, model, type_name):
    failed = model.objects.of_type(type_name).with_status("failed")
    found = reading_of(lambda: list(failed.page()))
    assert found.rows <= RARE_FAILURES, found.plan


@pytest.mark.parametrize("model", [Chain, Job])
def test_failed_jobs_of_several_types_read_one_page_of_each(places, model):
    types = [f"shop.type_{number}" for number in range(10, 100, 10)]
    for rows in (
        model.objects.of_type(*types).with_status("failed"),
        model.objects.with_status("failed").of_type(*types),
    ):
        found = reading_of(rows.page)
        assert found.rows == 0, found.plan
        assert "Append" in found.plan, found.plan


def test_pending_jobs_are_counted_with_an_index_only_scan(places):
    found = reading_of(lambda: get_store().stats.pending_groups(10_000))
    assert "Index Only Scan django_jobchains_job job jobchains_claimable" in found.plan
    assert "Index Scan django_jobchains_job" not in found.plan


def test_each_existing_type_and_queue_takes_one_index_probe(places):
    """A probe may pass over some steps of the same type that are not the last one of their chain."""
    stats = get_store().stats
    columns = {"type_name": stats.type_names, "chain_type_name": stats.chain_type_names, "queue": stats.queue_names}
    for column, read in columns.items():
        names = read(1_000)
        assert names == sorted(Job.objects.values_list(column, flat=True).distinct())
        assert read(3) == names[:3]
        found = reading_of(lambda read=read: read(1_000))
        assert found.rows <= 20 * len(names), found.plan


@pytest.mark.parametrize("model", [Chain, Job])
def test_an_estimate_reads_no_rows(places, model):
    with plans() as found:
        assert changelists._planner_estimate(model.objects.all()) > 1_000
    assert not [node for plan in found for node in nodes(plan) if "Actual Rows" in node]


@parametrized(NARROWED)
def test_hiding_a_rare_type_reads_few_more_rows(visit, browser, lists, places, choices, monkeypatch):
    """The condition that hides rows is applied only to rows that are read anyway."""
    for each in (ChainAdmin, JobAdmin):
        monkeypatch.setattr(each, "get_queryset", _without_rare(each.get_queryset))
        for read in (each.type_names, each.queue_names):
            monkeypatch.setattr(each, read.__name__, _once(read, choices))
    assert_reads_little(lambda: visit.request(lists if visit in LISTS else browser, places))


def _once(read: Callable[..., set[str]], choices: Choices) -> Callable[..., set[str]]:
    """Read the choices of a filter only once: they are the same in every list."""

    def read_once(self: Any, request: HttpRequest) -> set[str]:
        key = self.model, read.__name__
        if key not in choices:
            choices[key] = read(self, request)
        return choices[key]

    return read_once


def _without_rare(get_queryset: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, request: get_queryset(self, request).exclude(type_name="mail.type_97")
