"""Records move from state to state, and stay in states that do not allow a move."""

from datetime import timedelta

import pytest

from django_jobchains import records
from django_jobchains.records.checks import problems_of
from django_jobchains.store.record_tables import STATES
from tests.store.contract.records import HOUR

#: The states from which people may move a record, by operation.
MOVABLE = {
    "cancel": {"queued": "cancelled", "errored": "cancelled", "processing": "processing"},
    "requeue": dict.fromkeys(("processing", "errored", "failed", "cancelled"), "queued"),
    "retry": dict.fromkeys(("errored", "failed", "cancelled"), "queued"),
}


pytestmark = pytest.mark.django_db


def test_the_model_passes_the_system_checks(model):
    assert list(problems_of(model.kind)) == []


@pytest.mark.parametrize("state", [*STATES, "uploading"])
def test_only_queued_records_are_dequeued(model, state):
    record = model.put(state, finished_at=model.now() - HOUR)
    before = model.row(record)
    found = model.dequeue()
    if state == "queued":
        assert [(each.id, each.state) for each in found] == [(record.pk, "processing")]
    else:
        assert (found, model.row(record)) == ([], before)


def test_a_dequeue_starts_an_attempt(model):
    values = {
        "failure_message": "before",
        "execution_logs": [{"key": "a"}],
        "finished_at": model.now(),
    }
    record = model.put(lease_number=6, num_failures=1, num_resets=1, **values)
    [dequeued] = model.dequeue()
    row = model.row(record)
    assert (dequeued.lease_number, row["lease_number"], row["state"]) == (7, 7, "processing")
    assert row["started_at"] == row["last_heartbeat_at"] is not None
    assert (row["failure_message"] or "", row["execution_logs"], row["finished_at"]) == ("", [], None)
    assert (row["worker_hostname"], row["num_failures"], row["num_resets"]) == ("host", 1, 1)


def test_errored_records_are_dequeued_after_their_wait(model):
    now = model.now()
    ready = model.put("errored", finished_at=now - HOUR, process_after=now - HOUR)
    model.put("errored", finished_at=now - HOUR, process_after=now + HOUR)
    model.put("errored", finished_at=now - HOUR / 4)
    found = model.dequeue(retry_seconds=1800)
    assert [each.id for each in found] == [ready.pk]


def test_errored_records_without_the_time_of_their_error_are_due(model, store):
    unknown = model.put("errored")
    model.put("errored", process_after=model.now() + HOUR)
    assert store.records.count_by_state(model.table, model.kind.select("default"), 10, 1800).due == 1
    assert model.dequeue() == []
    assert [each.id for each in model.dequeue(retry_seconds=1800)] == [unknown.pk]


def test_records_wait_for_their_time(model):
    now = model.now()
    model.put(process_after=now + HOUR)
    past = model.put(process_after=now - HOUR)
    assert [each.id for each in model.dequeue()] == [past.pk]


def test_a_flagged_record_is_cancelled_instead_of_started(model):
    record = model.put(cancel=True, lease_number=3)
    assert [each.state for each in model.dequeue()] == ["cancelled"]
    row = model.row(record)
    assert (row["state"], row["started_at"], row["finished_at"] is not None) == ("cancelled", None, True)


def test_records_of_a_paused_queue_stay(model, store):
    model.make()
    store.queues.pause([model.kind.queue])
    assert model.dequeue() == []
    store.queues.resume([model.kind.queue])
    assert len(model.dequeue()) == 1


def test_a_limit_counts_records_of_all_kinds(model):
    now = model.now()
    for values in ({}, {"process_after": now - HOUR}, {"state": "errored", "finished_at": now - HOUR}):
        for _ in range(2):
            model.change(model.make(), **values)
    assert [len(model.dequeue(4, retry_seconds=1)) for _ in range(3)] == [4, 2, 0]


# Ends of attempts


@pytest.mark.parametrize("end", ["completed", "errored", "failed", "requeued", "handed_back"])
@pytest.mark.parametrize("state", [*STATES, "uploading"])
def test_only_records_in_process_with_the_lease_number_end(model, state, end):
    record = model.put(state, lease_number=1)
    before = model.row(record)
    assert [model.end((record.pk, number), end) for number in (0, 2)] == [{}, {}]
    assert model.row(record) == before
    written = model.end((record.pk, 1), end)
    assert bool(written) == (state == "processing")
    assert (model.row(record) == before) == (state != "processing")


@pytest.mark.parametrize(
    ("end", "failures", "state", "counted"),
    [
        ("completed", 0, "completed", 0),
        ("errored", 0, "errored", 1),
        ("errored", 1, "errored", 2),
        ("errored", 2, "failed", 3),
        ("failed", 0, "failed", 1),
    ],
)
def test_attempts_end(model, end, failures, state, counted):
    record, key = model.running(num_failures=failures)
    assert model.end(key, end, message="E: no", max_attempts=3) == {key: state}
    row = model.row(record)
    assert (row["state"], row["num_failures"], row["finished_at"] is not None) == (state, counted, True)
    assert (row["failure_message"] or "") == ("" if state == "completed" else "E: no")


@pytest.mark.parametrize("end", ["errored", "failed", "requeued", "handed_back"])
def test_an_attempt_that_was_asked_to_stop_is_cancelled(model, end):
    record, key = model.running(cancel=True)
    assert model.end(key, end, message="E: no", max_attempts=3) == {key: "cancelled"}
    row = model.row(record)
    assert (row["num_failures"], row["failure_message"] or "", row["finished_at"] is not None) == (0, "", True)
    _, key = model.running(cancel=True)
    assert model.end(key, "completed") == {key: "completed"}  # by a handler that ignores the flag


def test_a_record_that_is_requeued_waits_for_its_time(model):
    after = model.now() + HOUR
    record, key = model.running()
    assert model.end(key, "requeued", process_after=after) == {key: "queued"}
    row = model.row(record)
    assert (row["process_after"], row["cancel"], row["started_at"]) == (after, False, None)
    assert (row["num_failures"], row["num_resets"], row["finished_at"]) == (0, 0, None)


def test_a_record_that_is_handed_back_is_as_before(model):
    past = model.now() - HOUR
    record = model.put(process_after=past, num_failures=1)
    before = model.row(record)
    [dequeued] = model.dequeue()
    assert model.end(dequeued.key, "handed_back") == {dequeued.key: "queued"}
    changed = {"lease_number", "worker_hostname", "last_heartbeat_at"}
    row = model.row(record)
    assert {name: row[name] for name in row if name not in changed} == {
        name: before[name] for name in before if name not in changed
    }


# Heartbeats and resets


@pytest.mark.parametrize("state", [*STATES, "uploading"])
def test_a_heartbeat_finds_what_is_lost(model, store, state):
    record = model.put(state, lease_number=2)
    table = model.table
    beat = store.records.beat(table, [(record.pk, 2), (record.pk, 1)])
    assert beat.lost[record.pk, 1] == "taken_by_another_worker"
    reasons = {"processing": None, "completed": "already_completed", "cancelled": "cancelled"}
    assert beat.lost.get((record.pk, 2)) == reasons.get(state, "taken_by_another_worker")
    assert (model.row(record)["last_heartbeat_at"] is not None) == (state == "processing")


def test_a_heartbeat_finds_deleted_and_cancelled_records(model, store):
    deleted, flagged = model.put("processing"), model.put("processing", cancel=True)
    key = (deleted.pk, 1)
    deleted.delete()
    beat = store.records.beat(model.table, [key, (flagged.pk, 1)])
    assert (beat.lost, beat.cancelled, beat.locked) == ({key: "not_found"}, {(flagged.pk, 1)}, set())


@pytest.mark.parametrize("state", [*STATES, "uploading"])
def test_only_stalled_records_are_reset(model, state):
    now = model.now()
    stalled = model.put(state, last_heartbeat_at=now - HOUR)
    model.put(state, last_heartbeat_at=now)
    found = model.reset()
    assert [(id_, new) for id_, new, _ in found] == ([(stalled.pk, "queued")] if state == "processing" else [])


def test_a_reset_backs_off(model):
    now = model.now()
    record = model.put("processing", last_heartbeat_at=now - HOUR, started_at=now - HOUR, num_failures=1)
    model.reset()
    row = model.row(record)
    assert (row["state"], row["num_resets"], row["num_failures"], row["started_at"]) == ("queued", 1, 1, None)
    assert timedelta(seconds=59) < row["process_after"] - now < timedelta(seconds=90)


@pytest.mark.parametrize(("max_resets", "num_resets"), [(0, 0), (2, 2)])
def test_a_record_without_resets_left_fails(model, max_resets, num_resets):
    times = dict.fromkeys(("started_at", "last_heartbeat_at"), model.now() - HOUR)
    record = model.put("processing", num_resets=num_resets, **times)
    assert model.reset(max_resets=max_resets) == [(record.pk, "failed", num_resets)]
    row = model.row(record)
    assert (row["failure_message"], row["num_failures"], row["finished_at"] is not None) == ("gone", 0, True)
    assert row["started_at"] == times["started_at"]


def test_a_stalled_record_that_was_to_stop_is_cancelled(model):
    times = dict.fromkeys(("started_at", "last_heartbeat_at"), model.now() - HOUR)
    record = model.put("processing", cancel=True, **times)
    assert model.reset() == [(record.pk, "cancelled", 0)]
    assert model.row(record)["started_at"] == times["started_at"]


def test_records_that_the_caller_holds_are_not_found(model):
    first, second = [model.put("processing", last_heartbeat_at=model.now() - HOUR) for _ in range(2)]
    assert model.stalled(held=[first.pk]) == [(second.pk, 1)]


def test_only_the_given_records_are_reset(model):
    records = [model.put("processing", last_heartbeat_at=model.now() - HOUR) for _ in range(2)]
    assert [id_ for id_, *_ in model.reset([(records[1].pk, 1)])] == [records[1].pk]


@pytest.mark.parametrize("column", ["last_heartbeat_at", "lease_number", "state"])
def test_a_record_that_has_changed_since_is_not_reset(model, column):
    record = model.put("processing", last_heartbeat_at=model.now() - HOUR)
    keys = model.stalled()
    changed = {"last_heartbeat_at": model.now(), "lease_number": 2, "state": "errored"}
    model.change(record, **{column: changed[column]})
    assert (keys, model.reset(keys)) == ([(record.pk, 1)], [])


# Operations by people


@pytest.mark.parametrize("move", list(MOVABLE))
@pytest.mark.parametrize("state", [*STATES, "uploading"])
def test_people_can_move_records_in_some_states(model, state, move):
    values = {"num_failures": 2, "num_resets": 1, "process_after": model.now() - HOUR}
    record = model.put(state, cancel=state == "cancelled", **values)
    before = model.row(record)
    target = MOVABLE[move].get(state)
    assert getattr(records, move)(record) == (target is not None)
    row = model.row(record)
    if target is None:
        assert row == before
        return
    assert (row["state"], row["cancel"]) == (target, move == "cancel")
    counts = (0, 0) if move == "retry" else (2, 1)
    assert (row["num_failures"], row["num_resets"]) == counts
    assert (row["finished_at"] is not None) == (target == "cancelled")
    if target == "queued":
        assert row["process_after"] is None


def test_waiting_records_that_are_flagged_in_the_database_are_cancelled(model, store):
    states = ["queued", "errored", "processing", "completed"]
    made = [model.put(state, cancel=True, process_after=model.now() + HOUR) for state in states]
    table = model.table
    cancelled = [store.record_operations.cancel_flagged(table, limit) for limit in (1, 10, 10)]
    assert [len(ids) for ids in cancelled] == [1, 1, 0]
    assert {id_ for ids in cancelled for id_ in ids} == {made[0].pk, made[1].pk}
    assert [model.row(record)["state"] for record in made] == [
        "cancelled",
        "cancelled",
        "processing",
        "completed",
    ]
