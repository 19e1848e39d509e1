"""Above READ COMMITTED, a conflict in the statements that lock or complete a record costs no attempt.

``tests/attempts/test_conflicts.py`` tests what jobs and records have in common.
"""

from uuid import uuid4

import pytest
from django.db import transaction
from django.db.backends.signals import connection_created

from django_jobchains.attempts import record_attempt
from tests.records.models import Upload
from tests.shop.models import Effect
from tests.support.attempts import on_own_connection
from tests.support.waiting import until

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _serializable():
    """Let new connections, such as those of a worker, use this isolation level."""

    def set_level(connection, **kwargs):
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_isolation TO 'serializable'")

    connection_created.connect(set_level)
    yield
    connection_created.disconnect(set_level)


def conflict():
    """Read the upload that the handler's transaction is about to complete, and write what the handler has read."""
    with transaction.atomic():
        Upload.objects.get()
        Effect.objects.create(job_id=uuid4(), label="conflicts")


@pytest.mark.parametrize(
    ("max_conflicts", "end", "written"), [(10, ("completed", 0, 0, 4), 1), (3, ("errored", 1, 0, 3), 0)]
)
def test_a_conflict_while_completing_costs_no_attempt(register, start_worker, monkeypatch, max_conflicts, end, written):
    """A record that conflicts repeatedly errors."""
    monkeypatch.setattr(record_attempt, "MAX_CONFLICTS", max_conflicts)

    def stored():
        upload = Upload.objects.get()
        return upload.state, upload.num_failures, upload.num_resets, upload.lease_number

    def handle(record, run):
        with run.complete():
            Effect.objects.create(job_id=uuid4(), label=f"written after {Effect.objects.count()}")
            if record.lease_number <= 3:
                on_own_connection(conflict)

    register(handle)
    Upload.objects.create()
    start_worker(poll_seconds=0.05)
    until(lambda: stored() == end, what=stored)
    assert Effect.objects.filter(label__startswith="written").count() == written
    assert ("could not serialize access" in (Upload.objects.get().failure_message or "")) is not written
