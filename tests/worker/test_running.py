"""Which jobs a worker runs, and when it ends by itself."""

import threading
from types import SimpleNamespace

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import JobType, RescheduleJob
from django_jobchains.telemetry.events import WorkerStopping
from django_jobchains.worker.end_writer import EndWriter
from tests.support.waiting import stays, until, until_completed
from tests.support.workers import completed


@pytest.fixture
def double(processors):
    return processors.register("worker.double")(lambda job: job.input * 2)


def enqueue_double(double, count, **options):
    return chains.enqueue_many([double.item(number, **options) for number in range(count)])


def test_due_jobs_run_and_keep_their_output(double, make_worker):
    enqueued = enqueue_double(double, 20)
    later = double.enqueue(1, delay=3600)
    make_worker().run_until_idle()
    assert [chain.refresh().output for chain in enqueued] == [number * 2 for number in range(20)]
    assert (later.refresh().status, later.current_job.attempt) == ("pending", 0)


def test_run_until_idle_follows_chains_to_their_end(processors, make_worker):
    @processors.register("worker.count_down")
    def count_down(job):
        return job.continue_with("worker.count_down", job.input - 1) if job.input else "zero"

    chain = count_down.enqueue(30)
    make_worker().run_until_idle()
    assert chain.refresh().output == "zero"
    assert chain.jobs.count() == 31


def test_outcome_of_an_attempt_that_ends_during_the_check_is_waited_for(double, make_worker, monkeypatch):
    """Outcomes go from the slots to the writer, so the writer is checked last."""
    checked = []

    class Part(SimpleNamespace):
        is_idle = property(lambda self: checked.append(self.name) or True)

    claim_loop = make_worker().components.claim_loop
    with monkeypatch.context() as patch:
        patch.setattr(claim_loop, "_pools", [Part(name="slots")])
        patch.setattr(claim_loop, "_outcome_writer", Part(name="writer"))
        assert claim_loop._is_quiet()
    assert checked == ["slots", "writer"]


def test_worker_is_not_idle_if_a_full_lane_was_not_queried(double, processors, make_worker, monkeypatch):
    """The attempt that filled the lane ends between the look at the lanes and the query of the others."""
    processors.register("worker.batch", batch_limit=2)(lambda batch: None).enqueue(1)
    claim_loop = make_worker().components.claim_loop
    room, running = claim_loop._room, ["a batch"]

    def room_of(lane):
        claim_loop._wake.set()  # The step does not wait.
        if lane.batch_limit and running:
            running.clear()
            return 0
        return room(lane)

    monkeypatch.setattr(claim_loop, "_room", room_of)
    monkeypatch.setattr(claim_loop, "_is_quiet", lambda: not running)
    claim_loop.step()
    assert not running
    assert not claim_loop.idle.is_set()


def test_run_until_idle_raises_if_there_is_still_work(processors, make_worker, gate):
    processors.register("worker.endless")(lambda job: gate.wait(30)).enqueue()
    with pytest.raises(TimeoutError):
        make_worker(shutdown_seconds=0).run_until_idle(timeout=0.3)


def test_started_worker_runs_what_is_enqueued_later(double, start_worker):
    worker = start_worker()
    until_completed(double.enqueue(4))
    assert worker.stop() == 0


def test_burst_ends_when_nothing_is_due(double, make_worker):
    enqueue_double(double, 50)
    assert make_worker(burst=True).run() == 0
    assert completed() == 50


@pytest.mark.parametrize("slots", [1, 4])
def test_max_jobs_is_kept_exactly(double, make_worker, slots):
    enqueue_double(double, 60)
    assert make_worker(slots=slots, max_jobs=37).run() == 0
    assert completed() == 37
    assert Job.objects.filter(status="pending", attempt=0, lease_number=0).count() == 23


def test_max_jobs_counts_attempts_that_did_not_complete(processors, make_worker):
    @processors.register("worker.later")
    def later(job):
        raise RescheduleJob(delay=3600)

    chains.enqueue_many([later.item() for _ in range(3)])
    assert make_worker(max_jobs=2).run() == 0
    assert sorted(Job.objects.values_list("attempt", flat=True)) == [0, 1, 1]


def test_only_jobs_of_the_named_queues_and_types_are_claimed(processors, make_worker):
    """Types are names or patterns. Jobs of other types, or without a processor here, are not touched."""
    for name in ("shop.ship", "shop.charge", "mail.send", "mail.fetch"):
        job_type = processors.register(name)(lambda job: None)
        for queue in ("default", "mail", "reports"):
            job_type.enqueue(queue=queue)
    JobType("shop.unknown").enqueue(queue="mail")
    make_worker(types=["shop.*", "mail.fetch"], queues=["mail", "reports"]).run_until_idle()
    ran = {(name, queue) for name in ("shop.ship", "shop.charge", "mail.fetch") for queue in ("mail", "reports")}
    assert set(Job.objects.with_status("completed").values_list("type_name", "queue")) == ran
    assert set(Job.objects.incomplete().values_list("status", "attempt", "lease_number")) == {("pending", 0, 0)}


def test_most_urgent_jobs_run_first(processors, make_worker):
    order = []
    urgent = processors.register("worker.urgent")(lambda job: order.append(job.input))
    chains.enqueue_many([urgent.item(number, priority=number) for number in (1, 5, 3, -2, 4)])
    make_worker(slots=1).run_until_idle()
    assert order == [5, 4, 3, 1, -2]


def test_as_many_attempts_run_at_once_as_there_are_slots(processors, start_worker):
    together = threading.Barrier(4, timeout=15)
    meet = processors.register("worker.meet")(lambda job: together.wait() >= 0)
    chains.enqueue_many([meet.item() for _ in range(4)])
    start_worker(slots=4)
    until(lambda: completed() == 4)


def test_worker_without_processors_is_refused(registry, make_worker):
    with pytest.raises(ImproperlyConfigured, match="Registered: none"):
        make_worker()


def test_retiring_worker_ignores_hints(quick, start_worker):
    worker = start_worker()
    assert worker.components.context.wake.accepts_hints
    worker.retire()
    until(lambda: not worker.components.context.wake.accepts_hints)


def test_max_jobs_ends_when_the_last_outcome_is_written(double, make_worker, monkeypatch):
    """The worker does not wait for the next poll, an hour later."""
    worker = make_worker(max_jobs=1, poll_seconds=3600)
    write, components = EndWriter._write, worker.components

    def write_late(self, batch):
        """Write when the claim loop waits again, after the slot has become free."""
        until(lambda: components.slots.is_idle and not components.context.wake._is_set)
        write(self, batch)

    monkeypatch.setattr(EndWriter, "_write", write_late)
    double.enqueue(1)
    running = threading.Thread(target=worker.run)
    running.start()
    running.join(20)
    has_ended = not running.is_alive()
    worker.request_stop()
    running.join()
    assert has_ended


@pytest.mark.parametrize("is_signalled", [False, True])
def test_stop_on_another_thread_ends_run_which_does_not_stop_the_worker_again(
    processors, make_worker, gate, events, is_signalled
):
    chain = processors.register("worker.waiting")(lambda job: gate.wait(30)).enqueue()
    worker, codes = make_worker(), []
    threading.Thread(target=lambda: codes.append(worker.run()), daemon=True).start()
    until(lambda: worker.running)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    until(lambda: events.of(WorkerStopping))
    if is_signalled:
        worker.request_stop()
    assert stays(lambda: len(events.of(WorkerStopping)) == 1 and not codes, 0.3)
    gate.set()
    until(lambda: codes == [0])
    stopping.join()
    assert (chain.refresh().status, worker.stop(), len(events.of(WorkerStopping))) == ("completed", 0, 1)
