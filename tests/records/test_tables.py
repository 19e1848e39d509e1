"""Tables in another database, that do not exist yet, or whose columns have other types and widths."""

from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, models
from django.test.utils import isolate_apps
from django.utils import timezone

from django_jobchains import chains, records
from django_jobchains.processors import Concurrency
from django_jobchains.records import JobRecord
from django_jobchains.records.checks import check_record_tables, check_records
from django_jobchains.testing import run_due_jobs
from django_jobchains.worker import Worker
from tests.records.models import LETTER_COLUMNS, Export, Letter, Upload
from tests.support.waiting import until

pytestmark = pytest.mark.django_db


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


@pytest.mark.usefixtures("_elsewhere", "migrate", "quick_resets")
def test_records_of_another_database_are_neither_dequeued_nor_reset(register, processors, start_worker, caplog):
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
def test_a_requested_type_of_another_database_is_an_error(register, processors, make_worker):
    register()
    processors.register("shop.note")(lambda job: None)
    problem = "the tables of records.upload are not in the database 'default', as DATABASE_ROUTERS decide"
    for types in (["records.upload", "shop.*"], ["records.*"]):
        with pytest.raises(ImproperlyConfigured, match=problem):
            make_worker(types=types)
    assert make_worker(types=["records.*", "shop.*"]).options.type_names == ("shop.note",)


@pytest.mark.usefixtures("quick_resets")
def test_a_model_is_served_once_its_table_is_migrated(register, processors, start_worker, migrate, caplog):
    note = processors.register("shop.note")(lambda job: None)
    register(poll_every=0.02, stalled_after=1)
    processors.records(Export, poll_every=0.02, stalled_after=1)(lambda record, run: None)
    worker = start_worker(poll_seconds=0.05)
    Export.objects.create(**is_stalled())
    for _ in range(3):
        Export.objects.create()
        chains.wait(note.enqueue(), 15)
    until(lambda: Export.objects.filter(state="completed").count() == 4)
    until(lambda: worker.health().is_ready, what=worker.health)
    for problem in ("Records of 'records.upload' could not be dequeued", "could not be reset or cancelled"):
        [line] = [record.getMessage() for record in caplog.records if problem in record.getMessage()]
        assert "records_upload" in line
        assert line.endswith("Run 'manage.py migrate --database default'. No restart is needed.")
    migrate()
    Upload.objects.create()
    Upload.objects.create(**is_stalled())
    until(lambda: Upload.objects.filter(state="completed").count() == 2)
    assert not worker.failed


# Columns that differ are reported, by the checks and by workers, instead of records that never run


#: A table that another program has created.
IMPORTS = """
    CREATE TABLE records_import (
        id serial, state text default 'queued', failure_message text, started_at timestamptz, finished_at timestamptz,
        process_after timestamptz, num_resets integer default 0, num_failures integer default 0,
        last_heartbeat_at timestamptz, execution_logs json[], worker_hostname text default '',
        cancel boolean default false
    )
"""


class States(models.TextChoices):
    NEW = "new"
    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETED = "completed"
    ERRORED = "errored"
    FAILED = "failed"
    STOPPED = "stopped"


def nothing(record, run):
    """A handler."""


@isolate_apps("tests.records")
@pytest.mark.parametrize(
    ("column", "field", "id", "problem"),
    [
        ("state", models.CharField(max_length=8), "E019", "has max_length=8, which is too short for 'processing'"),
        ("state", models.IntegerField(), "E019", "must be of the type CharField or TextField, not IntegerField"),
        ("state", models.CharField(max_length=20, choices=States), "E020", "has choices without cancelled, which are"),
        ("queued_at", models.DateField(auto_now_add=True), "E019", "must be of the type DateTimeField, not DateField"),
        ("finished_at", models.DateTimeField(), "E014", "must allow NULL"),
        ("num_resets", models.FloatField(), "E019", "must be of the type IntegerField, not FloatField"),
        ("num_failures", models.IntegerField(null=True), "E014", "must not allow NULL"),
        ("lease_number", models.SmallIntegerField(), "E019", "must be of the type IntegerField or larger, not Small"),
        ("execution_logs", models.TextField(), "E019", "must be of the type JSONField, not TextField"),
        ("worker_hostname", models.GenericIPAddressField(), "E019", "must be of the type CharField or TextField, not"),
        ("cancel", models.DateTimeField(null=True), "E019", "must be of the type BooleanField, not DateTimeField"),
    ],
)
def test_field_that_cannot_hold_the_column_is_refused(processors, make_worker, column, field, id, problem):
    class Other(JobRecord):
        class Meta(JobRecord.Meta):
            app_label = "records"

        locals()[column] = field

    processors.records(Other)(nothing)
    [found] = check_records()
    assert found.id == f"jobchains.{id}"
    assert f"the field {column!r} ({column}) " in found.msg
    assert problem in found.msg
    with pytest.raises(ImproperlyConfigured, match=problem):
        make_worker()


def test_one_model_with_two_sets_of_columns_is_refused(processors, make_worker):
    """Otherwise, only one set would be reset, retried, and protected from ``record.save()``."""
    processors.records(Letter, "letters", columns=LETTER_COLUMNS)(nothing)
    processors.records(Letter, "again", columns=LETTER_COLUMNS)(nothing)
    assert check_records() == []
    processors.records(Letter, "checks", columns={**LETTER_COLUMNS, "process_after": "began"})(nothing)
    [found] = [problem for problem in check_records() if problem.id == "jobchains.E021"]
    assert found.msg.startswith("Records 'checks' and 'letters' are registered for Letter with different columns=")
    with pytest.raises(ImproperlyConfigured, match=r"with different columns=.* Use the same columns, or a separate"):
        make_worker(types=["again"])


# The real table


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("state TYPE varchar(8)", "the column 'state' (state) of the table records_upload is too short (character"),
        ("failure_message TYPE varchar(200)", "(failure_message) of the table records_upload is too short"),
        ("started_at TYPE timestamp", "(started_at) of the table records_upload has the type timestamp without time"),
        ("process_after SET NOT NULL", "(process_after) of the table records_upload must allow NULL"),
        ("num_failures DROP NOT NULL", "(num_failures) of the table records_upload must not allow NULL"),
        ("num_resets TYPE numeric", "(num_resets) of the table records_upload has the type numeric"),
        ("lease_number TYPE smallint", "(lease_number) of the table records_upload has the type smallint"),
        ("execution_logs TYPE text", "(execution_logs) of the table records_upload has the type text"),
        ("cancel TYPE text", "(cancel) of the table records_upload has the type text"),
    ],
)
def test_column_of_the_table_that_differs_is_reported(processors, registry, change, problem):
    """The changes of the table are rolled back, because the test has a transaction."""
    processors.records(Upload)(nothing)
    worker = Worker(registry=registry)
    worker.check_database()
    assert check_record_tables(["default"]) == []
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE records_upload ALTER COLUMN {change.split(maxsplit=1)[0]} DROP DEFAULT")
        for index in Upload._meta.indexes:
            cursor.execute(f"DROP INDEX IF EXISTS {index.name}")
        cursor.execute(f"ALTER TABLE records_upload ALTER COLUMN {change}")
    [found] = check_record_tables(["default"])
    assert (found.id, problem in found.msg) == ("jobchains.W010", True)
    with pytest.raises(ImproperlyConfigured, match=r"ALTER TABLE \"records_upload\" ALTER COLUMN"):
        worker.check_database()


@pytest.mark.postgresql
@pytest.mark.parametrize("type_", ["citext", "positive", "timestamptz(0)", "smallint"])
def test_types_that_can_hold_the_columns_are_accepted(processors, type_):
    processors.records(Upload)(nothing)
    column = {"citext": "failure_message", "timestamptz(0)": "started_at", "smallint": "num_resets"}
    with connection.cursor() as cursor:
        cursor.execute("CREATE EXTENSION IF NOT EXISTS citext; CREATE DOMAIN positive AS integer CHECK (VALUE >= 0)")
        cursor.execute(f"ALTER TABLE records_upload ALTER COLUMN {column.get(type_, 'num_failures')} TYPE {type_}")
    assert check_record_tables(["default"]) == []


@pytest.mark.postgresql
def test_column_and_table_that_are_not_migrated_yet_are_not_reported(processors):
    processors.records(Upload)(nothing)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE records_upload DROP COLUMN lease_number")
        assert check_record_tables(["default"]) == []
        cursor.execute("DROP TABLE records_upload")
    assert check_record_tables(["default"]) == []


@pytest.fixture
def imports(transactional_db):
    """The table as another program has created it, and its model."""
    with isolate_apps("tests.records"), connection.cursor() as cursor:

        class Import(JobRecord):
            class Meta(JobRecord.Meta):
                app_label = "records"
                managed = False

        cursor.execute(IMPORTS)
        yield Import
        cursor.execute("DROP TABLE records_import")


@pytest.fixture
def in_schema(transactional_db):
    """A model whose table is in another schema of PostgreSQL."""
    with isolate_apps("tests.records"), connection.cursor() as cursor:

        class Import(JobRecord):
            class Meta(JobRecord.Meta):
                app_label = "records"
                db_table = 'archive"."import'

        cursor.execute("CREATE SCHEMA archive")
        with connection.schema_editor() as editor:
            editor.create_model(Import)
        yield Import
        cursor.execute("DROP SCHEMA archive CASCADE")


@pytest.mark.postgresql
@pytest.mark.parametrize("options", [{}, {"concurrency": Concurrency(1)}, {"order_by": ["-id"]}])
def test_table_of_another_schema(processors, make_worker, in_schema, options):
    processors.records(in_schema, **options)(handle)
    assert [*check_records(), *check_record_tables(["default"])] == []
    cancelled, handled = in_schema.objects.create(), in_schema.objects.create()
    assert records.cancel(cancelled) == 1
    make_worker(slots=1).run_until_idle(timeout=20)
    for record, state in ((cancelled, "cancelled"), (handled, "completed")):
        record.refresh_from_db()
        assert record.state == state


def handle(record, run):
    entry = run.add_log("convert", ["convert"])
    entry.update(out="done", exit_code=0)
    record.save()


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_table_of_another_program_runs_after_the_reported_statements(processors, make_worker, imports):
    processors.records(imports, poll_every=0.02)(handle)
    found = check_record_tables(["default"])
    assert {problem.id for problem in found} == {"jobchains.W010"}
    assert [problem.msg.split("the column ")[1] for problem in found] == [
        "'queued_at' (queued_at) of the table records_import does not exist.",
        "'num_resets' (num_resets) of the table records_import must not allow NULL.",
        "'num_failures' (num_failures) of the table records_import must not allow NULL.",
        "'execution_logs' (execution_logs) of the table records_import has the type json[].",
        "'lease_number' (lease_number) of the table records_import does not exist.",
    ]
    with pytest.raises(ImproperlyConfigured, match=r"'queued_at' .* does not exist\. Change it in a migration, or run"):
        make_worker().check_database()
    with connection.cursor() as cursor:
        cursor.execute('INSERT INTO records_import (execution_logs) VALUES (ARRAY[\'{"key": "old"}\'::json])')
        for problem in found:
            cursor.execute((problem.hint or "").partition("or run: ")[2])
    assert check_record_tables(["default"]) == []
    worker = make_worker()
    worker.check_database()
    worker.run_until_idle(timeout=20)
    row = imports.objects.values().get()
    assert [(log["key"], log["out"]) for log in row["execution_logs"]] == [("convert", "done")]


@pytest.mark.postgresql
def test_reported_statements_keep_the_defaults_that_other_programs_use(processors):
    processors.records(Upload)(nothing)
    execute("""
        ALTER TABLE records_upload
            ALTER COLUMN queued_at TYPE timestamp, ALTER COLUMN num_failures TYPE numeric,
            ALTER COLUMN execution_logs DROP DEFAULT, ALTER COLUMN execution_logs TYPE json[] USING '{}',
            ALTER COLUMN execution_logs SET DEFAULT '{}'
    """)
    for problem in check_record_tables(["default"]):
        execute((problem.hint or "").partition("or run: ")[2])
    assert check_record_tables(["default"]) == []
    execute("INSERT INTO records_upload (size, result) VALUES (1, '')")
    row = Upload.objects.get()
    assert (row.state, row.num_failures, row.execution_logs) == ("queued", 0, [])
    assert abs(timezone.now() - row.queued_at) < timedelta(minutes=1)


@pytest.mark.postgresql
def test_logs_may_have_the_type_json_unless_the_field_cannot_read_it(processors):
    processors.records(Upload)(handle)
    processors.records(Letter, columns=LETTER_COLUMNS)(nothing)
    for table, column in (("records_upload", "execution_logs"), ("records_letter", "logs")):
        execute(f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT")
        execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE json")
    [found] = check_record_tables(["default"])
    assert "the column 'logs' (execution_logs) of the table records_letter has the type json, which" in found.msg
    assert found.hint == (
        'Change it in a migration, or run: ALTER TABLE "records_letter" ALTER COLUMN "logs" TYPE jsonb;'
    )
    Upload.objects.create(execution_logs=[{"key": "old"}])
    [outcome] = run_due_jobs()
    assert (outcome.ending, [log["key"] for log in Upload.objects.get().execution_logs]) == ("completed", ["convert"])


@pytest.mark.django_db(transaction=True)
def test_name_of_a_worker_is_cut_to_the_column(processors, make_worker):
    processors.records(Letter, columns=LETTER_COLUMNS)(nothing)
    Letter.objects.create(code="a")
    make_worker(name="a-host-name-that-is-longer-than-the-column").run_until_idle(timeout=20)
    assert Letter.objects.get().host == "a-host-name-that-is-"


@pytest.mark.parametrize("wrong", [{"SLOT": 5}, {"LEASE_SECONDS": "soon"}, {"STORE": "no.such.Store"}])
def test_wrong_settings_are_reported_by_another_check(processors, settings, wrong):
    processors.records(Upload)(nothing)
    settings.JOBCHAINS = wrong
    assert check_records() == []
    assert check_record_tables(["default"]) == []
