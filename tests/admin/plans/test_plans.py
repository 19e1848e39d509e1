"""No page of the admin reads a table whole or sorts it: what it reads depends on what it shows.

The pages are those that ``benchmarks.admin`` measures at ten million jobs.
"""

import pytest
from django.test import Client

from benchmarks.admin.places import Places
from benchmarks.admin.visiting import Visit
from benchmarks.admin.visits import all_visits
from django_jobchains.models import Job
from tests.admin.plans.conftest import JOBS
from tests.admin.plans.reading import reading_of

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db]

#: Of a table, by one node of a plan.
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
