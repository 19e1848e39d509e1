"""What the database knows about the table changes how a claim runs, never what it finds."""

import pytest
from django.db import connection

from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.store.jobs import MAIL, claim, create

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("priority", [-5, 0, 5])
def test_a_claim_finds_jobs_after_the_table_was_analyzed(store: Store, priority: int) -> None:
    """SQLite 3.40 puts a bloom filter over the index's expression then, through which an equality finds nothing."""
    create(store, 500, MAIL, priority=priority)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    assert len(claim(store, 5)) == 5


@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_claim_has_one_time_also_when_the_database_takes_the_table_for_empty(store: Store, known: int) -> None:
    """PostgreSQL may then look at the clock again for each job."""
    create(store, known)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    create(store, 50)
    claim(store)
    assert Job.objects.filter(status="running").values("last_attempt_at").distinct().count() == 1
