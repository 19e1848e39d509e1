"""Models whose table is in another database, or does not exist yet, do not stop a worker."""

from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.processors import RunningJob
from django_jobchains.testing import run_due_jobs
from tests.records.models import Export, Upload
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


class UploadsElsewhere:
    """A router: the table of uploads is in another database."""

    def allow_migrate(self, db, app_label, model_name=None, **hints):
        return False if model_name == "upload" else None


@pytest.fixture
def _elsewhere(settings):
    settings.DATABASE_ROUTERS = [UploadsElsewhere()]


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture
def migrate(transactional_db):
    """The table of uploads does not exist until this is called."""
    execute("ALTER TABLE records_upload RENAME TO not_migrated")

    def migrate():
        tables = connection.introspection.table_names()
        if "not_migrated" in tables:
            execute("ALTER TABLE not_migrated RENAME TO records_upload")

    yield migrate
    migrate()


def is_stalled():
    return {"state": "processing", "last_heartbeat_at": timezone.now() - timedelta(hours=1), "lease_number": 1}


@pytest.mark.usefixtures("_elsewhere", "migrate")
def test_records_of_another_database_are_neither_dequeued_nor_reset(
    register, processors, start_worker, settings, caplog
):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.05, "BACKOFF_INITIAL_SECONDS": 0.05}
    register(poll_every=0.02, stalled_after=1)
    processors.records(Export, poll_every=0.02, stalled_after=1)(lambda record, run: None)
    Export.objects.create(**is_stalled())
    worker = start_worker()
    until(lambda: Export.objects.filter(state="completed", num_resets__gt=0).exists())
    assert worker.options.type_names == ("records.export",)
    assert caplog.text.count("records.upload") == 0


@pytest.mark.usefixtures("_elsewhere", "migrate")
def test_due_jobs_of_a_test_do_not_read_another_database(register):
    register()
    assert run_due_jobs() == []


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize("types", [["records.upload", "shop.*"], ["records.*"]])
def test_a_requested_type_of_another_database_is_an_error(register, processors, make_worker, types):
    register()
    processors.register("shop.note")(lambda job: None)
    problem = "the tables of records.upload are not in the database 'default', as DATABASE_ROUTERS decide"
    with pytest.raises(ImproperlyConfigured, match=problem):
        make_worker(types=types)


@pytest.mark.usefixtures("_elsewhere")
def test_a_worker_of_jobs_leaves_out_records_of_another_database(register, processors, make_worker):
    register()
    processors.register("shop.note")(lambda job: None)
    assert make_worker(types=["records.*", "shop.*"]).options.type_names == ("shop.note",)


def test_a_model_is_served_once_its_table_is_migrated(register, processors, start_worker, migrate, settings, caplog):
    @processors.register("shop.note")
    def note(job: RunningJob[None]) -> None: ...

    settings.JOBCHAINS = {"REAP_SECONDS": 0.05, "BACKOFF_INITIAL_SECONDS": 0.05}
    register(poll_every=0.02, stalled_after=1)
    processors.records(Export, poll_every=0.02, stalled_after=1)(lambda record, run: None)
    worker = start_worker(poll_seconds=0.05)
    Export.objects.create(**is_stalled())
    for _ in range(3):
        Export.objects.create()
        chains.wait(note.enqueue(), 15)
    until(lambda: Export.objects.filter(state="completed").count() == 4)
    for problem in ("Records of 'records.upload' could not be dequeued", "could not be reset or canceled"):
        [line] = [record.getMessage() for record in caplog.records if problem in record.getMessage()]
        assert "records_upload" in line
        assert line.endswith("Run 'manage.py migrate --database default'. No restart is needed.")
    migrate()
    Upload.objects.create()
    Upload.objects.create(**is_stalled())
    until(lambda: Upload.objects.filter(state="completed").count() == 2)
    assert not worker.failed
