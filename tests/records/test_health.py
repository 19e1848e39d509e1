"""The health of a worker whose statements about records fail: those of one model, or those of a whole thread."""

from contextlib import contextmanager

import pytest
from django.db import OperationalError, connection

from django_jobchains.worker.renewal import LeaseRenewal
from tests.records.models import Export, Upload
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def missing(table):
    """Give a table another name, as if its migration had not been run."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
        try:
            yield
        finally:
            cursor.execute(f"ALTER TABLE {table}_away RENAME TO {table}")


def test_a_missing_table_is_logged_and_affects_only_its_model(processors, start_worker, caplog, settings):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.05}
    for model in (Upload, Export):
        processors.records(model, poll_every=0.05)(lambda record, run: None)
    with missing(Upload._meta.db_table):
        worker = start_worker()
        for what in ("could not be dequeued", "could not be reset or canceled"):
            until(lambda what=what: f"'records.upload' {what}" in caplog.text, what=lambda: caplog.text)
        Export.objects.create()
        until(lambda: Export.objects.get().state == "completed", what=worker.health)
        until(lambda: worker.health().is_ready, what=worker.health)
    assert "Run 'manage.py migrate --database default'. No restart is needed." in caplog.text
    Upload.objects.create()
    until(lambda: Upload.objects.get().state == "completed", what=worker.health)


@pytest.mark.postgresql
def test_a_session_that_the_server_ends_is_logged_without_a_traceback(processors, start_worker, caplog):
    """The server accepts connections, so Django connects again while the transaction of the query ends."""
    processors.records(Upload, poll_every=0.05)(lambda record, run: None)
    start_worker()
    Upload.objects.create()
    until(lambda: Upload.objects.get().state == "completed")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    Upload.objects.create()
    until(lambda: Upload.objects.filter(state="completed").count() == 2)
    logged = [record for record in caplog.records if "could not be dequeued" in record.getMessage()]
    assert [record.exc_info for record in logged] == [None]


@pytest.mark.parametrize(
    ("thread", "call_of"),
    [
        ("lease-renewal", lambda worker: (LeaseRenewal, "_each")),
        ("record-writer", lambda worker: (worker.store.records, "end")),
    ],
)
def test_a_worker_is_not_ready_while_a_thread_of_records_fails(processors, make_worker, monkeypatch, thread, call_of):
    def fail(*args):
        raise OperationalError("the connection is lost")

    processors.records(Upload)(lambda record, run: None)
    Upload.objects.create()
    worker = make_worker()
    with monkeypatch.context() as patch:
        patch.setattr(*call_of(worker), fail)
        worker.start()
        until(lambda: f"jobchains-{thread} fails and is retried" in worker.health().problems, what=worker.health)
        assert worker.health().is_live
    until(lambda: Upload.objects.get().state == "completed")
    until(lambda: worker.health().is_ready, what=worker.health)
