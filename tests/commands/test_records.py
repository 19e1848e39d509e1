"""``records`` changes records, by the name of their worker and their primary keys."""

from datetime import UTC, datetime

import pytest

from django_jobchains.cli import subcommand
from django_jobchains.processors import Processors
from tests.records.models import LETTER_COLUMNS, Letter, Upload
from tests.records.test_tables import UploadsElsewhere

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _records(registry):
    registry.add(part := Processors(queue="files"))
    part.records(Upload, retry_after=60, max_attempts=3, slots=2)(convert)
    part.records(Letter, columns=LETTER_COLUMNS)(convert)


def convert(record, run):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("operation", "state", "after", "word"),
    [
        ("cancel", "queued", "cancelled", "cancelled"),
        ("requeue", "cancelled", "queued", "requeued"),
        ("retry", "failed", "queued", "retried"),
    ],
)
@pytest.mark.parametrize("form", ["table", "json"])
def test_records_are_changed_by_their_keys(run, operation, state, after, word, form):
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


def test_records_can_be_requeued_for_later(run):
    record = Upload.objects.create(state="failed")
    assert run("records", "requeue", "records.upload", record.pk, "--after", "2030-01-02T03:00Z").code == 0
    record.refresh_from_db()
    assert record.process_after == datetime(2030, 1, 2, 3, tzinfo=UTC)


def test_keys_can_come_from_standard_input_in_several_batches(run, monkeypatch):
    monkeypatch.setattr(subcommand, "BATCH_SIZE", 2)
    Letter.objects.bulk_create([Letter(code=f"letter {number}") for number in range(5)])
    codes = Letter.objects.values_list("code", flat=True)
    assert run("records", "cancel", "records.letter", "-", stdin="\n".join(codes)).out == "5 records cancelled.\n"
    assert set(Letter.objects.values_list("status", flat=True)) == {"cancelled"}


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ("move records.upload 1", 1, "invalid choice: 'move'"),
        (
            "retry records.uploads 1",
            1,
            "No record worker 'records.uploads'. Did you mean 'records.upload'? Is its app in INSTALLED_APPS",
        ),
        ("retry records.uploads 1", 1, "Known: records.letter, records.upload."),
        ("retry records.upload one", 2, "'one' is not a primary key of Upload: “one” value must be an integ"),
        (f"retry records.upload {'9' * 30}", 2, "is not a primary key of Upload: Ensure this value is less than"),
        ("retry records.upload -", 1, "No primary keys were given."),
        ("retry records.upload KEY 4711", 1, "No Upload with the primary key 4711. Nothing was changed."),
        ("retry records.upload KEY --after 2030-01-02", 2, "--after is an option of 'records requeue'."),
        ("requeue records.upload QUEUED", 1, "Nothing requeued: only failed, errored, cancelled and processing"),
    ],
)
def test_an_error_names_the_remedy_and_nothing_changes(run, words, code, problem):
    failed, queued = Upload.objects.create(state="failed"), Upload.objects.create()
    done = run("records", *words.replace("KEY", str(failed.pk)).replace("QUEUED", str(queued.pk)).split())
    assert done.code == code
    assert problem in done.error
    assert list(Upload.objects.order_by("pk").values_list("state", flat=True)) == ["failed", "queued"]


def test_records_of_another_database_are_an_error(run, settings):
    settings.DATABASE_ROUTERS = [UploadsElsewhere()]
    done = run("records", "retry", "records.upload", "1")
    assert (done.code, "not in the database 'default'" in done.error) == (1, True)


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
