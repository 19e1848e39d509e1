"""``status``, ``top`` and ``types`` list record workers beside job types, and ``records`` changes records."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from django_jobchains import queues
from django_jobchains.chains import enqueue
from django_jobchains.cli import subcommand
from django_jobchains.processors import Processors
from django_jobchains.store import Store
from tests.commands.workers import worker
from tests.records.models import LETTER_COLUMNS, Letter, Upload
from tests.records.test_tables import UploadsElsewhere

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _records(registry):
    part = Processors(queue="files")
    part.records(Upload, retry_after=60, max_attempts=3, slots=2)(convert)
    part.records(Letter, columns=LETTER_COLUMNS)(convert)
    registry.add(part)


def convert(record: object, run: object) -> None:
    raise NotImplementedError


def some_records(store: Store) -> None:
    now = store.stats.time_ago(0)
    for state in ("queued", "processing", "completed", "failed", "failed"):
        Upload.objects.create(state=state, queued_at=now - timedelta(minutes=3))
    Upload.objects.create(state="errored", finished_at=now)


def row(out: str) -> str:
    [line] = [line for line in out.splitlines() if line.strip().startswith("records.upload ")]
    return " ".join(line.split())


@pytest.mark.parametrize("command", [("status",), ("top", "--once")])
def test_record_workers_are_listed_with_their_counts(run, store, command):
    some_records(store)
    assert row(run(*command).out) == "records.upload records.Upload 2 3 min 1 1 2 files"


@pytest.mark.parametrize("command", [("status",), ("top", "--once")])
def test_counts_of_records_are_in_the_json(run, store, command):
    some_records(store)
    _, kind = run(*command, "--format", "json").json["records"]
    assert (kind["queued"], kind["processing"], kind["errored"], kind["failed"]) == (2, 1, 1, 2)
    assert 180 <= kind["oldest_seconds"] < 240


def test_records_that_no_worker_runs_are_a_warning(run, store):
    some_records(store)
    worker(store)
    assert "! No worker processes records.upload: 1 record has been due for 3 min." in run("status").out
    worker(store, "files:8:abc", type_names=("records.upload",))
    assert "No worker runs" not in run("status").out


class TestHealth:
    @pytest.fixture(autouse=True)
    def _worker(self, store):
        worker(store)

    def test_due_records_count_as_due_jobs_do(self, run, store):
        some_records(store)
        Upload.objects.create(process_after=store.stats.time_ago(-3600))
        enqueue("shop.plain")
        assert (
            run("health", "--max-age", "5m", "--max-backlog", "2").out == "Healthy: 1 worker, 1 job and 1 record due.\n"
        )
        done = run("health", "--max-age", "2m", "--max-backlog", "1", "--format", "json")
        assert [problem["text"] for problem in done.json["problems"]] == [
            "The oldest due record of 'records.upload' has been waiting for 3 min, more than 2 min.",
            "1 job and 1 record due, more than 1.",
        ]
        assert (done.code, done.json["backlog"]) == (1, 2)
        assert 180 <= done.json["oldest_due_age_seconds"] < 240

    def test_errored_records_are_due_when_they_are_tried_again(self, run, store):
        for model in (Upload, Letter):  # letters are not tried again
            name = "state" if model is Upload else "status"
            ended = "finished_at" if model is Upload else "ended"
            model._base_manager.create(**{name: "errored", ended: store.stats.time_ago(100)})
        assert run("health").out == "Healthy: 1 worker, 0 jobs and 1 record due.\n"

    def test_records_of_paused_and_other_queues_are_not_checked(self, run, store):
        some_records(store)
        assert run("health", "--max-backlog", "0", "--queue", "bank").code == 0
        assert run("health", "--max-backlog", "0", "--queue", "files").code == 1
        queues.pause("files")
        assert run("health", "--max-backlog", "0", "--max-age", "0").code == 0


class TestMissingTable:
    """The table of letters is not migrated yet. The others are shown, and the problem is reported."""

    PROBLEM = "The table of records.letter does not exist or lacks columns. Run manage.py migrate."

    @pytest.fixture(autouse=True, params=["TABLE records_letter RENAME TO x", "TABLE records_letter RENAME ended TO x"])
    def _missing(self, db, request):
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER {request.param}")

    @pytest.mark.parametrize("command", [("status",), ("top", "--once")])
    def test_other_records_are_listed(self, run, store, command):
        some_records(store)
        done = run(*command)
        assert row(done.out) == "records.upload records.Upload 2 3 min 1 1 2 files"
        assert "records.letter records" not in done.out
        assert (self.PROBLEM in done.out) == (command == ("status",))
        letters, uploads = run(*command, "--format", "json").json["records"]
        assert (letters["problem"], uploads["problem"]) == ("missing", "")

    def test_it_is_not_healthy(self, run, store):
        worker(store)
        done = run("health", "--format", "json")
        assert (done.code, done.json["problems"]) == (1, [{"code": "records", "text": self.PROBLEM}])


def test_types_show_the_settings_of_records(run):
    out = run("types", "records.*").out
    for line in ("records of records.Upload", "tests.commands.test_records.convert", "columns state: status"):
        assert line in out
    letters, uploads = run("types", "records.*", "--format", "json").json["records"]
    assert letters["columns"]["state"] == "status"
    assert uploads["settings"]["retry_after_seconds"] == {"value": 60, "source": "processor"}
    assert uploads["settings"]["max_resets"]["source"] == "settings"
    assert uploads["settings"]["slots"]["value"] == 2
    assert letters["settings"]["retry_after_seconds"]["value"] is None


class TestOperations:
    @pytest.mark.parametrize(
        ("operation", "state", "after", "word"),
        [
            ("cancel", "queued", "cancelled", "cancelled"),
            ("requeue", "cancelled", "queued", "requeued"),
            ("retry", "failed", "queued", "retried"),
        ],
    )
    @pytest.mark.parametrize("form", ["table", "json"])
    def test_records_are_changed_by_their_keys(self, run, operation, state, after, word, form):
        keys = [Upload.objects.create(state=state, num_failures=2).pk for _ in range(3)]
        other = Upload.objects.create(state="completed").pk
        done = run("records", operation, "records.upload", keys[0], keys[1], other, keys[0], "--format", form)
        assert (done.code, done.error) == (0, "")
        changed = Upload.objects.filter(pk__in=keys[:2])
        assert set(changed.values_list("state", "num_failures")) == {(after, 0 if operation == "retry" else 2)}
        assert Upload.objects.get(pk=keys[2]).state == state
        if form == "json":
            assert done.json == {word: 2, "asked": 3}
        else:
            assert done.lines[0] == f"2 records {word}."
            assert done.lines[1].startswith("1 id not changed: only ")

    def test_records_can_be_requeued_for_later(self, run):
        record = Upload.objects.create(state="failed")
        assert run("records", "requeue", "records.upload", record.pk, "--after", "2030-01-02T03:00Z").code == 0
        record.refresh_from_db()
        assert record.process_after == datetime(2030, 1, 2, 3, tzinfo=UTC)
        done = run("records", "retry", "records.upload", record.pk, "--after", "2030-01-02")
        assert (done.code, done.error) == (2, "--after is an option of 'records requeue'.")

    def test_keys_can_come_from_standard_input_in_several_batches(self, run, monkeypatch):
        monkeypatch.setattr(subcommand, "BATCH_SIZE", 2)
        Letter.objects.bulk_create([Letter(code=f"letter {number}") for number in range(5)])
        codes = Letter.objects.values_list("code", flat=True)
        assert run("records", "cancel", "records.letter", "-", stdin="\n".join(codes)).out == "5 records cancelled.\n"
        assert set(Letter.objects.values_list("status", flat=True)) == {"cancelled"}

    @pytest.mark.parametrize(
        ("words", "code", "problem"),
        [
            (["move", "records.upload", "1"], 1, "invalid choice: 'move'"),
            (["retry", "records.uploads", "1"], 1, "No record worker 'records.uploads'. Is its app in INSTALLED_APPS"),
            (["retry", "records.uploads", "1"], 1, "Known: records.letter, records.upload."),
            (
                ["retry", "records.upload", "one"],
                2,
                "'one' is not a primary key of Upload: “one” value must be an integ",
            ),
            (
                ["retry", "records.upload", "9" * 30],
                2,
                "is not a primary key of Upload: Ensure this value is less than",
            ),
            (["retry", "records.upload", "-"], 1, "No primary keys were given."),
        ],
    )
    def test_wrong_arguments_are_errors_that_name_the_remedy(self, run, words, code, problem):
        done = run("records", *words)
        assert done.code == code
        assert problem in done.error

    def test_an_unknown_key_is_an_error_and_nothing_changes(self, run):
        record = Upload.objects.create(state="failed")
        done = run("records", "retry", "records.upload", record.pk, 4711)
        assert (done.code, done.error) == (1, "No Upload with the primary key 4711. Nothing was changed.")
        record.refresh_from_db()
        assert record.state == "failed"

    def test_a_change_of_nothing_fails_with_a_reason(self, run):
        done = run("records", "retry", "records.upload", Upload.objects.create().pk)
        expected = "Nothing retried: only failed, errored and cancelled records can be retried."
        assert (done.code, done.error) == (1, expected)

    def test_records_of_another_database_are_an_error(self, run, settings):
        settings.DATABASE_ROUTERS = [UploadsElsewhere()]
        done = run("records", "retry", "records.upload", "1")
        assert (done.code, "not in the database 'default'" in done.error) == (1, True)
