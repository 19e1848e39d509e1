"""No page of the admin reads a table whole or sorts it: what it reads depends on what it shows.

The pages are those that ``benchmarks.admin`` measures at ten million jobs.
"""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from benchmarks.admin.jobs import RARE_FAILURES
from benchmarks.admin.places import Places
from benchmarks.admin.sizes import COMMON
from benchmarks.admin.visiting import Visit
from benchmarks.admin.visits import RELIABLE, all_visits
from django_jobchains.admin import ChainAdmin, JobAdmin
from django_jobchains.models import Chain, Job
from django_jobchains.store import get_store
from tests.admin.plans.conftest import JOBS
from tests.admin.plans.reading import reading_of

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db]

#: Of a table, by one node of a plan. Lists count up to 10,000 rows.
MOST_ROWS = 12_000
MOST_SORTED = 2_500
VISITS = list(all_visits())


def test_there_are_so_many_jobs_that_plans_matter(places: Places) -> None:
    assert Job.objects.count() > JOBS * 0.95


@pytest.mark.parametrize("visit", VISITS, ids=[f"{visit.group}: {visit.name}" for visit in VISITS])
def test_a_page_reads_little_more_than_it_shows(visit: Visit, browser: Client, places: Places) -> None:
    responses = []
    reading = reading_of(lambda: responses.append(visit.request(browser, places)))
    assert responses[0].status_code == visit.status
    assert not reading.scans, reading.plan
    assert reading.rows < MOST_ROWS, reading.plan
    assert reading.sorted_rows < MOST_SORTED, reading.plan


@pytest.mark.parametrize("model", [Chain, Job])
@pytest.mark.parametrize("type_name", [COMMON, RELIABLE])
def test_what_failed_of_a_common_type_is_found_among_nothing_else(
    places: Places, model: type[Chain] | type[Job], type_name: str
) -> None:
    failed = model.objects.of_type(type_name).with_status("failed")
    found = reading_of(lambda: list(failed.page()))
    assert found.rows <= RARE_FAILURES, found.plan


@pytest.mark.parametrize("model", [Chain, Job])
def test_what_failed_of_several_types_is_a_page_of_each(places: Places, model: type[Chain] | type[Job]) -> None:
    types = [f"shop.type_{number}" for number in range(10, 100, 10)]
    for rows in (
        model.objects.of_type(*types).with_status("failed"),
        model.objects.with_status("failed").of_type(*types),
    ):
        found = reading_of(rows.page)
        assert found.rows == 0, found.plan
        assert "Append" in found.plan, found.plan


def test_pending_jobs_are_counted_by_their_index_alone(places: Places) -> None:
    found = reading_of(lambda: get_store().pending_groups(10_000))
    assert "Index Only Scan django_jobchains_job job jobchains_claimable" in found.plan
    assert "Index Scan django_jobchains_job" not in found.plan


NARROWED = [visit for visit in VISITS if visit.group != "Actions"]


@pytest.mark.parametrize("visit", NARROWED, ids=[f"{visit.group}: {visit.name}" for visit in NARROWED])
def test_where_a_rare_type_is_hidden_a_page_reads_little_more(
    visit: Visit, browser: Client, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hides rows is part of the queries: a condition on rows that are found anyway."""
    for each in (ChainAdmin, JobAdmin):
        monkeypatch.setattr(each, "get_queryset", _without_rare(each.get_queryset))
    reading = reading_of(lambda: visit.request(browser, places))
    assert not reading.scans, reading.plan
    assert reading.rows < MOST_ROWS, reading.plan
    assert reading.sorted_rows < MOST_SORTED, reading.plan


def _without_rare(get_queryset: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, request: get_queryset(self, request).exclude(type_name="mail.type_97")
