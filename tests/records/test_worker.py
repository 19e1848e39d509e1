"""Workers that run records: aborted attempts, shared slots, queues, limits, wake-ups and the end of a worker."""

import threading
import time
from datetime import timedelta
from itertools import count, pairwise

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from django_jobchains import queues, records
from django_jobchains.models import AttemptCount, Job
from django_jobchains.telemetry.events import AttemptEnded, RecordReset
from django_jobchains.worker.claim_loop import ClaimLoop
from django_jobchains.worker.records import RecordSource, RecordWorkers
from django_jobchains.worker.slots import Backlog, Slots
from tests.records.conftest import Waiting
from tests.records.models import Upload
from tests.support.waiting import stays, until

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)
LATER = timezone.now() + HOUR


def in_state(state):
    return Upload.objects.filter(state=state).count()


@pytest.mark.parametrize(
    ("interfere", "reason", "state"),
    [
        (lambda: Upload.objects.all().delete(), "not_found", None),
        (lambda: Upload.objects.update(cancel=True), "cancelled", "cancelled"),
        (lambda: Upload.objects.update(state="completed"), "already_completed", "completed"),
        (lambda: records.cancel(Upload.objects.all()), "cancelled", "cancelled"),
        (lambda: records.requeue(Upload.objects.all(), after=LATER), "taken_by_another_worker", "queued"),
        (lambda: Upload.objects.update(lease_number=9), "taken_by_another_worker", "processing"),
    ],
)
def test_the_handler_of_a_record_that_is_taken_away_is_aborted(handling, interfere, reason, state):
    handler = Waiting()
    handling(handler, heartbeat_every=0.05)
    interfere()
    until(lambda: handler.reasons)
    assert handler.reasons == [reason]
    if state:
        until(lambda: in_state(state))
        upload = Upload.objects.get()
        assert (upload.num_failures, upload.num_resets) == (0, 0)


def test_a_record_that_is_dequeued_while_the_worker_stops_is_handed_back_and_is_no_attempt(
    register, start_worker, monkeypatch
):
    register()
    is_dequeuing, is_closed, is_stopped = threading.Event(), threading.Event(), threading.Event()
    dequeue, close, hand_back = RecordSource.dequeue, ClaimLoop.close, RecordWorkers.hand_back

    def late_dequeue(source, *args, **options):
        is_dequeuing.set()
        is_closed.wait(20)
        return dequeue(source, *args, **options)

    def close_first(claim_loop):
        close(claim_loop)
        is_closed.set()
        until(lambda: len(worker.components.context.record_leases["records.upload"]))

    def late_hand_back(workers, attempts):
        if attempts and "claim-loop" in threading.current_thread().name:
            is_stopped.wait(20)
        return hand_back(workers, attempts)

    monkeypatch.setattr(RecordSource, "dequeue", late_dequeue)
    monkeypatch.setattr(ClaimLoop, "close", close_first)
    monkeypatch.setattr(RecordWorkers, "hand_back", late_hand_back)
    Upload.objects.create()
    worker = start_worker()
    assert is_dequeuing.wait(20)
    assert worker.stop(timeout=0) == 0
    is_stopped.set()
    upload = Upload.objects.get()
    assert (upload.state, upload.num_failures, upload.num_resets) == ("queued", 0, 0)


@pytest.mark.postgresql
@pytest.mark.parametrize("ends", ["requeues", "ignores it"])
def test_a_handler_inside_complete_is_told_and_does_not_delay_the_caller(register, start_worker, ends):
    is_inside, is_told = threading.Event(), threading.Event()

    def handle(record, run):
        with run.complete():
            is_inside.set()
            if run.signal.wait(60):
                is_told.set()
            if ends == "requeues":
                run.requeue()

    register(handle, heartbeat_every=20, cancel_every=3600)
    Upload.objects.create(size=1)
    worker = start_worker()
    assert is_inside.wait(60)
    until(lambda: worker.health().is_ready)
    waiting = Upload.objects.create(process_after=timezone.now() + HOUR)
    assert records.cancel(Upload.objects.all()) == 2
    waiting.refresh_from_db()
    assert waiting.state == "cancelled"
    assert is_told.wait(60)
    state = "completed" if ends == "ignores it" else "cancelled"
    until(lambda: Upload.objects.get(size=1).state == state, what=lambda: vars(Upload.objects.get(size=1)))
    assert Upload.objects.get(size=1).num_failures == 0


def test_changes_by_sql_are_noticed_before_the_next_heartbeat(handling):
    handler = Waiting()
    handling(handler, cancel_every=0.05, heartbeat_every=3600, stalled_after=36_000)
    Upload.objects.all().delete()
    until(lambda: handler.reasons)
    assert handler.reasons == ["not_found"]


# Resets


@pytest.mark.usefixtures("quick_resets")
def test_stalled_and_flagged_records_are_reset_and_cancelled_by_the_worker(register, start_worker, events):
    attempts = []
    register(lambda record, run: attempts.append(run.attempt), poll_every=0.02, stalled_after=60)
    Upload.objects.create(state="processing", last_heartbeat_at=timezone.now() - HOUR, lease_number=1)
    Upload.objects.create(state="errored", cancel=True)
    start_worker()
    until(lambda: in_state("completed") == in_state("cancelled") == 1)
    assert (attempts, [event.state for event in events.of(RecordReset)]) == ([2], ["queued"])


# Slots and limits


def test_jobs_and_records_take_turns(processors, make_worker, monkeypatch):
    order = []
    put, puts = Slots.put, count(1)

    def put_slowly(slots, attempts):
        put(slots, attempts)
        if next(puts) == 2:  # The slot is free again when the next lane claims.
            until(lambda: slots.is_idle)

    def note(name):
        order.append(name)
        time.sleep(0.06)  # long enough that nothing is claimed ahead

    job_type = processors.register("shop.note")(lambda job: note("job"))
    processors.records(Upload)(lambda record, run: note("record"))
    for _ in range(4):
        Upload.objects.create()
        job_type.enqueue()
    worker = make_worker(slots=1)
    monkeypatch.setattr(Slots, "put", put_slowly)
    worker.run_until_idle(timeout=60)
    assert all(first != second for first, second in pairwise(order))
    assert (in_state("completed"), Job.objects.filter(status="completed").count()) == (4, 4)


def test_a_job_that_ends_causes_no_query_while_records_are_not_due(processors, register, start_worker):
    gate = threading.Event()
    register(poll_every=600)
    block = processors.register("shop.block")(lambda job: gate.wait(30))
    worker = start_worker(slots=2)
    wake = worker.components.context.wake
    block.enqueue()
    until(lambda: worker.components.slots.running == 1 and not wake.needs_slots)
    gate.set()
    until(lambda: Job.objects.with_status("completed").exists())
    until(lambda: not wake.needs_slots)


@pytest.mark.parametrize(("options", "limit", "most"), [({"slots": 2}, None, 2), ({"queue": "media"}, 1, 1)])
def test_slots_and_the_limit_of_a_queue_apply_to_records(register, start_worker, options, limit, most):
    handler = Waiting()
    register(handler, poll_every=0.02, **options)
    queues.set_limit("media", limit)
    Upload.objects.bulk_create([Upload() for _ in range(5)])
    start_worker(slots=4)
    until(lambda: in_state("processing") == most)
    assert stays(lambda: in_state("processing") <= most, 0.2)
    handler.released.set()
    until(lambda: in_state("completed") == 5)


def test_ended_records_are_counted_and_end_a_worker_with_a_limit(register, make_worker):
    register()
    Upload.objects.bulk_create([Upload() for _ in range(5)])
    assert make_worker(max_jobs=3).run() == 0
    assert (in_state("completed"), in_state("queued")) == (3, 2)
    counted = AttemptCount.objects.filter(type_name="records.upload")
    assert sum(counted.values_list("completed", flat=True)) == 3


def test_records_that_are_handed_back_do_not_count_for_max_jobs(register, start_worker, events, monkeypatch):
    handler = Waiting()
    register(lambda record, run: handler(record, run) if record.size else None)
    # Every attempt counts as short, however slow the machine is, so that the worker dequeues ahead.
    monkeypatch.setattr(Backlog, "count_seconds", lambda backlog, seconds: setattr(backlog, "average_seconds", 0.001))
    Upload.objects.create()
    start_worker(slots=1, max_jobs=7, poll_seconds=0.05)
    until(lambda: in_state("completed") == 1)
    Upload.objects.create(size=1)
    handler.until_started()
    Upload.objects.bulk_create([Upload() for _ in range(5)])
    until(lambda: any(event.ending == "handed_back" for event in events.of(AttemptEnded)))
    handler.released.set()
    until(lambda: in_state("completed") == 7)


@pytest.mark.parametrize(
    ("options", "others", "own"),
    [
        ({"name": "uploads.convert"}, {"types": ["shop.*"]}, {"types": ["uploads.*"]}),
        ({"queue": "media"}, {"queues": ["mail"]}, {"queues": ["media"]}),
    ],
    ids=["types", "queues"],
)
def test_a_worker_serves_the_records_of_its_types_and_queues(register, processors, make_worker, options, others, own):
    register(**options)
    processors.register("shop.note")(lambda job: None)
    Upload.objects.create()
    make_worker(**others).run_until_idle(timeout=20)
    assert in_state("queued") == 1
    make_worker(**own).run_until_idle(timeout=20)
    assert in_state("completed") == 1


def test_a_worker_without_anything_to_work_for_does_not_start(register, make_worker):
    register(queue="media")
    with pytest.raises(ImproperlyConfigured, match="and no records of the queues mail"):
        make_worker(queues="mail")


# Wake-ups, and what other processes see


def test_notify_wakes_workers_after_the_commit(register, start_worker, events):
    register(poll_every=60)
    worker = start_worker()
    until(lambda: worker.has_begun and worker.health().is_ready)
    Upload.objects.create()
    records.notify(Upload)
    until(lambda: in_state("completed"), 10)


def test_queries_for_records_claim_no_jobs(processors, register, start_worker, monkeypatch):
    claimed, looked = [], []
    claim, dequeue = ClaimLoop._claim, RecordSource.dequeue
    monkeypatch.setattr(ClaimLoop, "_claim", lambda *args: claimed.append(args) or claim(*args))
    monkeypatch.setattr(RecordSource, "dequeue", lambda *args: looked.append(args) or dequeue(*args))
    processors.register("records.job")(lambda job: None)
    register(poll_every=0.05)
    start_worker(poll_seconds=60)
    until(lambda: len(looked) > 3)
    before = len(claimed)
    until(lambda: len(looked) > 20)
    assert len(claimed) == before
