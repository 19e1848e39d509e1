"""The plans of retention: old chains are found by index, even if their keys must be checked."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.db import connection
from django.db.models import F

from django_jobchains.models import Job
from django_jobchains.store import get_store
from django_jobchains.store.retention import EndedChains, EndPosition
from tests.queries.reading import reading_of
from tests.store.backlog import add, add_links, analyze, empty
from tests.support.jobs import SHIP

pytestmark = pytest.mark.django_db

HISTORY = 20_000
BATCH = 500
#: Thousands of steps of SQLite's virtual machine per batch.
MAX_THOUSAND_STEPS = 150
ENDED = EndedChains(("completed",), datetime(2051, 1, 1, tzinfo=UTC), (SHIP,), keyed=False)
LAST = UUID(int=2**128 - 1)


@pytest.fixture(scope="module", autouse=True)
def _history(django_db_setup, django_db_blocker):
    """Completed chains with keys, half of which never expire, and links between other jobs."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        add(cursor, HISTORY, SHIP, "completed", 0, "-1 hour")
        add(cursor, HISTORY, "shop.unserved", "pending", 0, "-1 hour")
        add_links(cursor, "shop.unserved", "shop.unserved", is_open=False)
        jobs = Job.objects.with_status("completed")
        jobs.update(finished_at=F("created_at"))
        jobs.filter(deduplication_key__regex="[02468]$").update(deduplicates_until=F("created_at"))
        analyze(cursor)
        yield
        empty(cursor)


@pytest.fixture
def store():
    return get_store()


def test_search_reads_one_batch_by_index(store):
    assert 0 < len(find(store)) < BATCH
    reading = reading_of(lambda: find(store))
    assert not reading.scans, reading.plan
    assert reading.rows <= BATCH, reading.plan
    assert reading.steps < MAX_THOUSAND_STEPS


def test_batch_is_deleted_by_primary_key(store):
    job_ids = find(store)
    reading = reading_of(lambda: store.retention.prune(job_ids, ENDED))
    assert not reading.scans, reading.plan
    assert reading.rows <= 2 * BATCH, reading.plan
    assert reading.steps < MAX_THOUSAND_STEPS
    assert not Job.objects.filter(id__in=job_ids).exists()


def find(store):
    return list(store.retention.find_ended("status", "completed", EndPosition(UUID(int=0)), LAST, BATCH, ENDED).job_ids)
