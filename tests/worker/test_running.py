"""Which jobs a worker runs, and when it ends by itself."""

import threading
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import JobType, RescheduleJob, RunningJob
from django_jobchains.worker.end_writer import EndWriter
from tests.support.waiting import until, until_completed


@pytest.fixture
def double(processors):
    @processors.register("worker.double")
    def double(job: RunningJob[int]) -> int:
        return job.input * 2

    return double


def completed() -> int:
    return Job.objects.with_status("completed").count()


def test_due_jobs_run_and_keep_their_output(double, make_worker):
    enqueued = [double.enqueue(number) for number in range(20)]
    make_worker().run_until_idle()
    assert [chain.refresh().output for chain in enqueued] == [number * 2 for number in range(20)]


def test_run_until_idle_follows_chains_to_their_end(processors, make_worker):
    @processors.register("worker.count_down")
    def count_down(job: RunningJob[int]) -> Any:
        return job.continue_with("worker.count_down", job.input - 1) if job.input else "zero"

    chain = count_down.enqueue(30)
    make_worker().run_until_idle()
    assert chain.refresh().output == "zero"
    assert chain.jobs.count() == 31


def test_outcome_of_an_attempt_that_ends_during_the_check_is_waited_for(double, make_worker, monkeypatch):
    """Outcomes go from the slots to the writer, so the writer is checked last."""
    checked: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        @property
        def is_idle(self) -> bool:
            checked.append(self.name)
            return True

    claim_loop = make_worker().components.claim_loop
    with monkeypatch.context() as patch:
        patch.setattr(claim_loop, "_pools", [Part("slots")])
        patch.setattr(claim_loop, "_outcome_writer", Part("writer"))
        assert claim_loop._is_quiet()
    assert checked == ["slots", "writer"]


def test_run_until_idle_skips_scheduled_jobs(double, make_worker):
    later = double.enqueue(1, delay=3600)
    make_worker().run_until_idle()
    assert (later.refresh().status, later.current_job.attempt) == ("pending", 0)


def test_run_until_idle_raises_if_there_is_still_work(processors, make_worker):
    @processors.register("worker.endless")
    def endless(job: RunningJob[None]) -> None:
        job.signal.wait(60)
        job.signal.raise_if_aborted()

    endless.enqueue()
    with pytest.raises(TimeoutError):
        make_worker(shutdown_seconds=0).run_until_idle(timeout=0.3)


def test_started_worker_runs_what_is_enqueued_later(double, start_worker):
    worker = start_worker()
    chain = double.enqueue(4)
    until_completed(chain)
    assert worker.stop() == 0


def test_burst_ends_when_nothing_is_due(double, make_worker):
    chains.enqueue_many([double.item(number) for number in range(50)])
    assert make_worker(burst=True).run() == 0
    assert completed() == 50


@pytest.mark.parametrize("slots", [1, 4])
def test_max_jobs_is_kept_exactly(double, make_worker, slots):
    chains.enqueue_many([double.item(number) for number in range(60)])
    assert make_worker(slots=slots, max_jobs=37).run() == 0
    assert completed() == 37
    assert Job.objects.filter(status="pending", attempt=0, lease_number=0).count() == 23


def test_max_jobs_counts_attempts_that_did_not_complete(processors, make_worker):
    @processors.register("worker.later")
    def later(job: RunningJob[None]) -> None:
        raise RescheduleJob(delay=3600)

    chains.enqueue_many([later.item() for _ in range(3)])
    assert make_worker(max_jobs=2).run() == 0
    assert sorted(Job.objects.values_list("attempt", flat=True)) == [0, 1, 1]


def test_only_the_named_queues_are_served(double, make_worker):
    names = ["default", "mail", "reports"]
    chains.enqueue_many([double.item(1, queue=name) for name in names])
    make_worker(queues=["mail", "reports"]).run_until_idle()
    assert set(Job.objects.with_status("completed").values_list("queue", flat=True)) == {"mail", "reports"}


def test_types_are_names_or_patterns(processors, make_worker):
    for name in ("shop.ship", "shop.charge", "mail.send", "mail.fetch"):
        processors.register(name)(lambda job: None).enqueue()
    make_worker(types=["shop.*", "mail.fetch"]).run_until_idle()
    remaining = Job.objects.with_status("pending").values_list("type_name", "attempt")
    assert list(remaining) == [("mail.send", 0)]


def test_type_without_a_processor_here_is_not_claimed(double, make_worker):
    unknown = [JobType[int, int]("worker.unknown").enqueue(number) for number in range(3)]
    known = double.enqueue(1)
    make_worker(slots=1).run_until_idle()
    assert known.refresh().status == "completed"
    assert list(Job.objects.of_type("worker.unknown").values_list("status", "attempt", "lease_number")) == [
        ("pending", 0, 0)
    ] * len(unknown)


def test_most_urgent_jobs_run_first(processors, make_worker):
    order: list[int] = []
    urgent: JobType[Any, Any] = processors.register("worker.urgent")(lambda job: order.append(job.input))
    chains.enqueue_many([urgent.item(number, priority=number) for number in (1, 5, 3, -2, 4)])
    make_worker(slots=1).run_until_idle()
    assert order == [5, 4, 3, 1, -2]


def test_as_many_attempts_run_at_once_as_there_are_slots(processors, start_worker):
    together = threading.Barrier(4, timeout=15)
    meet: JobType[Any, Any] = processors.register("worker.meet")(lambda job: together.wait() >= 0)
    chains.enqueue_many([meet.item() for _ in range(4)])
    start_worker(slots=4)
    until(lambda: completed() == 4)


def test_worker_without_processors_is_refused(registry, make_worker):
    with pytest.raises(ImproperlyConfigured, match="Registered: none"):
        make_worker()


def test_retiring_worker_ignores_hints(processors, start_worker):
    processors.register("worker.quick")(lambda job: None)
    worker = start_worker()
    assert worker.components.context.wake.accepts_hints
    worker.retire()
    until(lambda: not worker.components.context.wake.accepts_hints)


def test_max_jobs_ends_when_the_last_outcome_is_written(double, make_worker, monkeypatch):
    """The worker does not wait for the next poll, an hour later."""
    worker = make_worker(max_jobs=1, poll_seconds=3600)
    write, components = EndWriter._write, worker.components

    def write_late(self: EndWriter[Any], batch: Any) -> None:
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
