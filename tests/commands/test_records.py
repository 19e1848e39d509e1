"""``status``, ``top`` and ``types`` list record workers beside job types."""

from datetime import timedelta

import pytest

from django_jobchains.processors import Processors, Registry
from django_jobchains.store import Store
from tests.commands.conftest import Run
from tests.commands.workers import worker
from tests.records.models import LETTER_COLUMNS, Letter, Upload

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _records(registry: Registry) -> None:
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
def test_record_workers_are_listed_with_their_counts(run: Run, store: Store, command: tuple[str, ...]) -> None:
    some_records(store)
    assert row(run(*command).out) == "records.upload records.Upload 2 3 min 1 1 2 files"


@pytest.mark.parametrize("command", [("status",), ("top", "--once")])
def test_counts_of_records_are_in_the_json(run: Run, store: Store, command: tuple[str, ...]) -> None:
    some_records(store)
    _, kind = run(*command, "--format", "json").json["records"]
    assert (kind["queued"], kind["processing"], kind["errored"], kind["failed"]) == (2, 1, 1, 2)
    assert 180 <= kind["oldest_seconds"] < 240


def test_records_that_no_worker_runs_are_a_warning(run: Run, store: Store) -> None:
    some_records(store)
    worker(store)
    assert "! No worker runs 'records.upload': 2 records queued." in run("status").out
    worker(store, "files:8:abc", type_names=("records.upload",))
    assert "No worker runs" not in run("status").out


def test_types_show_the_settings_of_records(run: Run) -> None:
    out = run("types", "records.*").out
    for line in ("records of records.Upload", "tests.commands.test_records.convert", "columns state: status"):
        assert line in out
    letters, uploads = run("types", "records.*", "--format", "json").json["records"]
    assert letters["columns"]["state"] == "status"
    assert uploads["settings"]["retry_after_seconds"] == {"value": 60, "source": "processor"}
    assert uploads["settings"]["max_resets"]["source"] == "settings"
    assert uploads["settings"]["slots"]["value"] == 2
    assert letters["settings"]["retry_after_seconds"]["value"] is None
