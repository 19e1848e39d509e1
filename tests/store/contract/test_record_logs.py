"""Execution logs of records: stored at once by the attempt that holds the record, and cleared by the next attempt."""

import pytest

from django_jobchains.attempts.record_attempt import RecordAttempt, RecordEnvironment
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.records import RecordLost, RecordRun

pytestmark = pytest.mark.django_db


def test_an_entry_is_stored_at_once_and_rewritten(model):
    record, run = started(model)
    run.add_log("list", "ls -l", out="a.tif", exit_code=0)
    entry = run.add_log("convert", ["convert", "a b"])
    assert [shown(each) for each in logs(model, record)] == [
        ("list", "ls -l", "a.tif", 0),
        ("convert", ["convert", "a b"], "", None),
    ]
    entry.update(out="done", exit_code=2)
    assert shown(logs(model, record)[1]) == ("convert", ["convert", "a b"], "done", 2)


def test_the_next_attempt_begins_without_entries(model):
    record, run = started(model)
    run.add_log("convert", "convert a.tif")
    model.end((record.pk, 1), "requeued")
    assert len(logs(model, record)) == 1
    model.dequeue()
    assert logs(model, record) == []


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (None, "not_found"),
        ({"lease_number": 2}, "taken_by_another_worker"),
        ({"state": "completed"}, "already_completed"),
    ],
)
def test_an_attempt_without_its_record_stores_nothing(model, values, reason):
    record, run = started(model)
    entry = run.add_log("convert", "convert a.tif")
    if values is None:
        model.rows.filter(pk=record.pk).delete()
    else:
        model.change(record, execution_logs=[], **values)
    for write in (entry.update, lambda: run.add_log("more", "")):
        with pytest.raises(RecordLost) as caught:
            write()
        assert caught.value.reason == reason
    assert values is None or logs(model, record) == []


def started(model):
    """Create and dequeue a record, and return what its handler receives."""
    record, key = model.running()
    attempt = RecordAttempt(record, key, RecordEnvironment(model.kind, model.store, print), AbortSignal())
    return record, RecordRun(record, attempt, type_name=model.kind.name, queue=model.kind.queue)


def logs(model, record):
    return model.row(record)["execution_logs"]


def shown(entry):
    return entry["key"], entry["command"], entry["out"], entry["exit_code"]
