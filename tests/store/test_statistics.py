"""A claim finds the same jobs whatever the statistics of the table are."""

import pytest
from django.db import connection

from django_jobchains.models import Job
from tests.support.jobs import MAIL, claim, create

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("priority", [-5, 0, 5])
def test_claim_finds_jobs_after_the_table_was_analyzed(store, priority):
    """SQLite 3.40 then uses a Bloom filter on the expression of the index, which makes an equality find nothing."""
    create(store, 500, MAIL, priority=priority)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    assert len(claim(store, 5)) == 5


@pytest.mark.parametrize("known", [0, 1, 2])
def test_jobs_of_a_claim_have_the_same_time_if_the_planner_expects_an_empty_table(store, known):
    """PostgreSQL may then read the clock again for each job."""
    create(store, known)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    create(store, 50)
    claim(store)
    assert Job.objects.filter(status="running").values("last_attempt_at").distinct().count() == 1
