"""No page of the admin reads or sorts a whole table: the number of rows it reads depends on how many it shows.

This excludes the count of a list, which reads up to 10,000 rows, of chains with all their steps, and has a time limit.

The pages are those that ``benchmarks.admin`` measures with ten million jobs.
"""

from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from benchmarks.admin.filling import make_user, write
from benchmarks.admin.jobs import RARE_FAILURES
from benchmarks.admin.places import Places
from benchmarks.admin.sizes import COMMON, Sizes
from benchmarks.admin.visiting import operator
from benchmarks.admin.visits import RELIABLE, all_visits
from benchmarks.admin.writing import statements
from django_jobchains.admin import ChainAdmin, JobAdmin
from django_jobchains.admin.lists import changelists
from django_jobchains.models import (
    AttemptCount,
    Chain,
    FailedAttempt,
    Job,
    JobBlocker,
    JobProgress,
    LogLine,
    QueueState,
    WorkerPresence,
)
from django_jobchains.monitoring.durations import PART_SIZE, PARTS, ended_jobs
from django_jobchains.store import get_store
from tests.support.jobs import database_now
from tests.support.plans import nodes, plan_of, plans, rows_read, use_plans

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db]

JOBS = 50_000
#: The largest numbers of rows that one node of a plan may read from a table, and sort.
MAX_ROWS = 12_000
MAX_SORTED = 2_500
#: Tables that grow with the jobs.
LARGE = tuple(model._meta.db_table for model in (Job, JobBlocker, FailedAttempt, LogLine, JobProgress, AttemptCount))
TABLES = (*LARGE, *(model._meta.db_table for model in (QueueState, WorkerPresence)))
VISITS = list(all_visits())
LISTS = [visit for visit in VISITS if visit.group.startswith("List of")]
PAGES = [visit for visit in VISITS if visit not in LISTS]
#: Lists whose whole page is rendered: plain, filtered, searched, and a later page. For other lists, only rows are read.
RENDERED = {
    "the most common type",
    "the most common type, failed (4 of them)",
    "a prefix of 15 types",
    "deduplication key",
    "the most common type, incomplete, far from the first page",
}
#: The first statements of every request.
OF_MIDDLEWARE = ('SELECT "django_session"', 'SELECT "auth_user"')


class ListReader:
    """Replaces the client in a visit to a list: reads the rows, but renders nothing, in a fifth of the time."""

    def __init__(self, user):
        self.user = user

    def get(self, url, follow=False):
        request = RequestFactory().get(url)
        request.user = self.user
        model = Chain if "_chain_" in resolve(urlsplit(url).path).url_name else Job
        return admin.site.get_model_admin(model).get_changelist_instance(request)


@pytest.fixture(scope="module")
def places(django_db_setup, django_db_blocker):
    """Create the jobs of half a year, commit them, and return places in them that the visits need."""
    with django_db_blocker.unblock():
        with statements() as run:
            write(run, Sizes(JOBS), lambda text: None)
            run("VACUUM")  # index-only scans need a visibility map
        assert Job.objects.count() > JOBS * 0.95
        yield Places.find()
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {', '.join(TABLES)}")


@pytest.fixture(scope="module")
def user(places, django_db_blocker):
    """Create and return the superuser, who may view everything."""
    with django_db_blocker.unblock():
        make_user()
        yield User.objects.get()
        User.objects.all().delete()


@pytest.fixture(scope="module")
def browser(user, django_db_blocker):
    with django_db_blocker.unblock():
        return operator()


@pytest.fixture(scope="module")
def lists(user):
    return ListReader(user)


@pytest.fixture(scope="module")
def choices():
    """The choices of filters where rows are hidden, by class and method. The first test fills them."""
    return {}


@pytest.fixture(autouse=True)
def _without_counts(monkeypatch):
    monkeypatch.setattr(changelists, "count_rows", lambda rows, shown: shown)


@dataclass(frozen=True)
class Reading:
    """What a call reads.

    ``scans`` are nodes that read a whole large table. ``rows`` and ``sorted_rows`` are the largest numbers of rows that
    one node of a plan reads from a table, or sorts.
    """

    scans: list
    rows: float
    sorted_rows: float
    plan: str


def reading_of(call):
    use_plans("auto")
    with connection.cursor() as cursor:
        # PostgreSQL prefers to scan small tables. If it may not, the only scans that remain have no usable index.
        cursor.execute("SET LOCAL enable_seqscan = off")
    # Estimates are statements that are planned but not executed.
    found = [node for node in plan_of(call) if node.get("Actual Loops")]
    sorts = [rows_read(child) for node in found if "Sort" in node["Node Type"] for child in node["Plans"]]
    return Reading(
        [_text(node) for node in found if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE],
        max((rows_read(node) for node in found if node.get("Relation Name") in LARGE), default=0),
        max(sorts, default=0),
        "\n".join(map(_text, found)),
    )


def _text(node):
    names = ("Node Type", "Relation Name", "Alias", "Index Name", "Index Cond", "Filter", "Sort Key")
    return f"{' '.join(str(node[name]) for name in names if name in node)} ({rows_read(node):.0f} rows)"


def assert_reads_little(call):
    reading = reading_of(call)
    assert not reading.scans, reading.plan
    assert reading.rows < MAX_ROWS, reading.plan
    assert reading.sorted_rows < MAX_SORTED, reading.plan


def each_of(visits):
    return pytest.mark.parametrize("visit", visits, ids=[f"{visit.group}: {visit.name}" for visit in visits])


both_models = pytest.mark.parametrize("model", [Chain, Job])


@each_of(PAGES)
def test_a_page_reads_few_rows_more_than_it_shows(visit, browser, places):
    responses = []
    assert_reads_little(lambda: responses.append(visit.request(browser, places)))
    assert responses[0].status_code == visit.status


@each_of(LISTS)
def test_a_list_reads_few_rows_more_than_it_shows(visit, lists, places):
    assert_reads_little(lambda: visit.request(lists, places))


def statements_of(call):
    with CaptureQueriesContext(connection) as captured:
        call()
    found = (query["sql"] for query in captured.captured_queries)
    return [sql for sql in found if "SAVEPOINT" not in sql and not sql.startswith(OF_MIDDLEWARE)]


@each_of([visit for visit in LISTS if visit.name in RENDERED])
def test_the_page_of_a_list_runs_the_same_statements_as_its_rows(visit, browser, lists, places):
    """Only reading the rows takes statements that are specific to a list; middleware and templates add none."""
    read = statements_of(lambda: visit.request(lists, places))
    assert statements_of(lambda: visit.request(browser, places)) == read


@each_of([visit for visit in LISTS if visit.name == "all"])
def test_the_counts_of_the_filters_read_few_rows(visit, browser, places):
    assert_reads_little(lambda: visit.request(browser, places))


@each_of([visit for visit in VISITS if visit.group != "Actions"])
def test_hiding_a_rare_type_reads_few_more_rows(visit, browser, lists, places, choices, monkeypatch):
    """The condition that hides rows is applied only to rows that are read anyway."""
    for each in (ChainAdmin, JobAdmin):
        monkeypatch.setattr(each, "get_queryset", _without_rare(each.get_queryset))
        for read in (each.type_names, each.queue_names):
            monkeypatch.setattr(each, read.__name__, _once(read, choices))
    assert_reads_little(lambda: visit.request(lists if visit in LISTS else browser, places))


def _without_rare(get_queryset):
    return lambda self, request: get_queryset(self, request).exclude(type_name="mail.type_97")


def _once(read, choices):
    """Read the choices of a filter only once: they are the same in every list."""

    def read_once(self, request):
        key = self.model, read.__name__
        if key not in choices:
            choices[key] = read(self, request)
        return choices[key]

    return read_once


@both_models
def test_failed_jobs_of_common_types_use_an_index_and_read_one_page_of_each(places, model):
    for type_name in (COMMON, RELIABLE):
        found = reading_of(lambda name=type_name: list(model.objects.of_type(name).with_status("failed").page()))
        assert found.rows <= RARE_FAILURES, found.plan
    types = [f"shop.type_{number}" for number in range(10, 100, 10)]
    failed = model.objects.with_status("failed")
    for rows in (model.objects.of_type(*types).with_status("failed"), failed.of_type(*types)):
        found = reading_of(rows.page)
        assert found.rows == 0, found.plan


def test_each_existing_type_and_queue_takes_one_index_probe(places):
    """A probe may pass over some steps of the same type that are not the last one of their chain."""
    stats = get_store().stats
    for column in ("type_name", "chain_type_name", "queue"):
        names = stats.names(column, 1_000)
        assert names == sorted(Job.objects.values_list(column, flat=True).distinct())
        assert stats.names(column, 3) == names[:3]
        found = reading_of(lambda column=column: stats.names(column, 1_000))
        assert found.rows <= 20 * len(names), found.plan


@pytest.mark.parametrize("days", [1, 7, 3_650])
def test_durations_read_a_limited_number_of_jobs_of_any_time(places, days):
    now = database_now()
    for column, name in (("type_name", COMMON), ("queue", Job.objects.filter(type_name=COMMON)[0].queue)):
        found = reading_of(lambda: ended_jobs(Job.objects.all(), column, name, now - timedelta(days=days), now))  # noqa: B023
        assert found.rows <= (PARTS + 1) * PART_SIZE, found.plan


@both_models
def test_an_estimate_reads_no_rows(places, model):
    with plans() as found:
        assert changelists._planner_estimate(model.objects.all()) > 1_000
    assert not [node for plan in found for node in nodes(plan) if "Actual Rows" in node]
