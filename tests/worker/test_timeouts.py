"""An attempt that exceeds its timeout is aborted; one that does not stop loses its job and its slot."""

import threading
import time

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.telemetry.events import AttemptStuck
from tests.shop.models import Effect
from tests.support.waiting import stays, until, until_completed
from tests.support.workers import time_out

SOON = 0.1


@pytest.fixture
def _soon_stuck(settings):
    """Give up attempts soon after they were asked to stop. Only for handlers that do not stop before."""
    settings.JOBCHAINS = {"STUCK_SECONDS": SOON}


soon_stuck = pytest.mark.usefixtures("_soon_stuck")


@pytest.fixture
def unresponsive(processors, gate):
    """A type whose first attempt ignores its signal until the gate opens, and then tries to write.

    Later attempts complete. The test ends the timeout of the first attempt.
    """

    @processors.register("worker.unresponsive")
    def unresponsive(job):
        if job.attempt == 1:
            Effect.objects.create(job_id=job.id, label="started")
            gate.wait(30)
            with job.complete():
                Effect.objects.create(job_id=job.id, label="written by the first")
                return 1
        return job.attempt

    return unresponsive


def labels():
    return set(Effect.objects.values_list("label", flat=True))


def test_time_counts_from_the_start_of_the_attempt(processors, start_worker):
    """It starts neither with the claim nor with an earlier attempt. The jobs are claimed together."""
    inside, ends = [], []

    @processors.register("worker.timed", timeout=3600)
    def timed(job):
        inside.append(time.monotonic())
        [attempt] = worker.components.slots.attempts()
        ends.append(attempt.expires_at - 3600)

    worker = start_worker(slots=1)
    worker.components.slots.backlog.average_seconds = 0.001  # as after many short jobs: the worker claims ahead
    for chain in chains.enqueue_many([timed.item() for _ in range(6)]):
        until_completed(chain)
    assert all(begun <= now for begun, now in zip(ends, inside, strict=True))
    assert all(before <= begun for before, begun in zip(inside, ends[1:], strict=False))


def test_timeout_may_come_from_the_settings(processors, start_worker, settings):
    settings.JOBCHAINS = {"TIMEOUT_SECONDS": SOON}
    limited = processors.register("worker.slow")(lambda job: job.signal.wait(30)).enqueue()
    free = processors.register("worker.unlimited", timeout=float("inf"))(lambda job: job.signal.wait(5 * SOON))
    free = free.enqueue()
    start_worker()
    until_completed(limited)
    until_completed(free)
    assert (limited.output, free.output) == (True, False)


def test_slots_are_replaced_up_to_a_limit_and_again_when_one_returns(
    unresponsive, quick, start_worker, events, settings, processors
):
    settings.JOBCHAINS = {"STUCK_SECONDS": SOON, "MAX_STUCK_SLOTS": 1}
    release = threading.Event()
    held = processors.register("worker.held", max_attempts=1)(lambda job: release.wait(30))
    worker = start_worker(slots=2)
    held.enqueue()
    time_out(worker, "release.wait(30)")
    until(lambda: len(events.of(AttemptStuck)) == 1)
    unresponsive.enqueue()
    time_out(worker)
    until(lambda: len(events.of(AttemptStuck)) == 2)
    assert not worker.failed
    until_completed(quick.enqueue())
    release.set()
    until(lambda: worker.components.slots.stuck == 1)
    until_completed(quick.enqueue())
    until(lambda: worker.components.slots.free() == 2)


@pytest.mark.usefixtures("patient_stop")
def test_worker_whose_slots_are_all_stuck_gives_up(unresponsive, make_worker, settings):
    settings.JOBCHAINS = {"STUCK_SECONDS": SOON, "MAX_STUCK_SLOTS": 1}
    chains.enqueue_many([unresponsive.item() for _ in range(2)])
    worker, code = make_worker(slots=1), []
    running = threading.Thread(target=lambda: code.append(worker.run()))
    running.start()
    for _ in range(2):
        time_out(worker)
    running.join(25)
    assert code == [1]
    assert worker.is_stuck
    assert not Job.objects.with_status("running").exists()
    assert not Job.objects.filter(attempt__gt=1).exists()


@soon_stuck
def test_stuck_handler_inside_complete_keeps_its_job_and_loses_its_slot(processors, quick, start_worker, gate, events):
    @processors.register("worker.locking")
    def locking(job):
        with job.complete():
            gate.wait(30)
            return "committed"

    chain = locking.enqueue()
    time_out(start_worker(slots=1))
    until(lambda: events.of(AttemptStuck))
    assert stays(lambda: not FailedAttempt.objects.exists(), 3 * SOON)
    gate.set()
    until_completed(chain)
    assert (chain.output, chain.jobs.get().attempt) == ("committed", 1)
    until_completed(quick.enqueue())


@soon_stuck
def test_cancelled_handler_that_does_not_stop_is_still_cancelled(unresponsive, start_worker, gate):
    chain = unresponsive.enqueue()
    start_worker()
    until(lambda: "started" in labels())
    chains.cancel(chain)
    until(lambda: chain.refresh().status == "cancelled")
    gate.set()
    assert stays(lambda: chain.refresh().status == "cancelled", 3 * SOON)


@soon_stuck
def test_stuck_handler_does_not_delay_the_end(unresponsive, start_worker):
    chain = unresponsive.enqueue()
    worker = start_worker(slots=1)
    time_out(worker)
    until_completed(chain)
    stopping = threading.Thread(target=worker.stop, args=[60])
    stopping.start()
    stopping.join(15)
    assert not stopping.is_alive()
    assert worker.is_stuck


def test_waiting_callback_does_not_delay_other_attempts(processors, start_worker, gate):
    @processors.register("worker.waiting", timeout=SOON)
    def waiting(job):
        job.signal.on_abort(lambda: gate.wait(30))
        job.signal.wait(30)

    started = [waiting.enqueue() for _ in range(3)]
    start_worker(slots=1)
    for chain in started:
        until_completed(chain)
