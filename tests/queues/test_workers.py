"""Running workers follow pauses and limits of queues."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from django_jobchains import chains, queues
from django_jobchains.models import Chain, Job
from django_jobchains.processors import JobType, RunningJob
from tests.support.statements import Statements, statements_of_others
from tests.support.waiting import stays, until, until_completed

#: How long a test observes that something does not happen.
OBSERVATION_SECONDS = 0.3
NO_HINTS = {"NOTIFIER": {"BACKEND": "django_jobchains.notifications.NullNotifier"}}


@pytest.fixture
def quick(processors):
    return processors.register("queues.quick")(lambda job: None)


class Gate:
    """A handler that blocks until the gate is opened, and counts the attempts that run at once in each queue."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self._lock = threading.Lock()
        self.running: list[str] = []
        self.max_running: dict[str, int] = {}

    def __call__(self, job: RunningJob[Any]) -> None:
        with self._lock:
            self.running.append(job.queue)
            self.max_running[job.queue] = max(self.max_running.get(job.queue, 0), self.running.count(job.queue))
        try:
            if not self.opened.wait(30):
                raise AssertionError("The gate was not opened.")
        finally:
            with self._lock:
                self.running.remove(job.queue)

    def is_running(self, **counts: int) -> Callable[[], bool]:
        """Return a condition: exactly these numbers of attempts run in these queues."""
        return lambda: {name: self.running.count(name) for name in {*self.running, *counts}} == counts


@pytest.fixture
def gate(make_worker):
    """Depends on ``make_worker``, so that the gate is opened before the workers stop."""
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def held(processors, gate):
    return processors.register("queues.held")(gate)


def enqueue(job_type: JobType[Any, Any], count: int, queue: str, **options: Any) -> list[Chain]:
    return chains.enqueue_many([job_type.item(queue=queue, **options) for _ in range(count)])


def are_pending(*chains: Chain) -> Callable[[], bool]:
    return lambda: all(chain.refresh().status == "pending" for chain in chains)


def completed_count(queue: str) -> int:
    return Job.objects.with_status("completed").filter(queue=queue).count()


# Pausing


def test_worker_skips_a_queue_paused_before_its_start(quick, start_worker):
    queues.pause("mail")
    mail, other = quick.enqueue(queue="mail"), quick.enqueue(queue="other")
    start_worker()
    until_completed(other)
    assert stays(are_pending(mail), OBSERVATION_SECONDS)
    queues.resume("mail")
    until_completed(mail)


def test_job_enqueued_during_a_pause_runs_after_it(quick, start_worker):
    start_worker()
    until_completed(quick.enqueue(queue="mail"))
    queues.pause("mail")
    mail = quick.enqueue(queue="mail")
    assert stays(are_pending(mail), OBSERVATION_SECONDS)
    queues.resume("mail")
    until_completed(mail)


def test_no_resumption_is_missed(quick, start_worker):
    """A queue may be resumed right after the worker has queried it."""
    start_worker()
    for _ in range(10):
        queues.pause("mail")
        mail = quick.enqueue(queue="mail")
        queues.resume("mail")
        until_completed(mail)


def test_pause_does_not_stop_running_jobs(held, gate, start_worker):
    start_worker(slots=3)
    first = enqueue(held, 1, "mail")[0]
    until(gate.is_running(mail=1))
    queues.pause("mail")
    second = enqueue(held, 1, "mail")[0]
    assert stays(gate.is_running(mail=1), OBSERVATION_SECONDS)
    gate.opened.set()
    until_completed(first)
    assert stays(are_pending(second), OBSERVATION_SECONDS)


def test_pause_that_is_rolled_back_has_no_effect(quick, start_worker):
    start_worker()
    with transaction.atomic():
        queues.pause("mail")
        transaction.set_rollback(True)
    until_completed(quick.enqueue(queue="mail"))


def test_queue_is_paused_at_once_and_resumed_by_a_poll_without_hints(quick, start_worker):
    with override_settings(JOBCHAINS=NO_HINTS):
        start_worker(poll_seconds=0.2)
        until_completed(quick.enqueue(queue="mail"))
        queues.pause("mail")
        mail = quick.enqueue(queue="mail")
        assert stays(are_pending(mail), OBSERVATION_SECONDS)
        queues.resume("mail")
        until_completed(mail)


def test_busy_worker_without_hints_notices_a_pause(processors, start_worker):
    @processors.register("queues.again")
    def again(job: RunningJob[None]) -> Any:
        job.signal.wait(0.01)
        return job.continue_with("queues.again", queue=job.queue)

    with override_settings(JOBCHAINS=NO_HINTS):
        start_worker(slots=1, poll_seconds=0.2)
        chains_ = [again.enqueue(queue=queue) for queue in ("mail", "other")]
        until(lambda: completed_count("mail") > 3)
        queues.pause("mail")
        until(has_only_others)
        chains.cancel(chains_)


def has_only_others() -> bool:
    """Return whether no job of the queue "mail" is completed while some of the queue "other" are."""
    mail, other = completed_count("mail"), completed_count("other")
    until(lambda: completed_count("other") > other + 10)
    return completed_count("mail") == mail


def test_worker_sends_few_statements_while_its_queues_are_paused(quick, start_worker):
    queues.pause("mail", "slow")
    enqueue(quick, 20, "mail")
    with statements_of_others() as statements:
        start_worker(queues=["mail", "slow"])
        until(lambda: statements_per_second(statements) < 10)
        queues.resume("mail")
        until(lambda: completed_count("mail") == 20)


def statements_per_second(statements: Statements) -> int:
    before = len(statements) - statements.count("data_version")
    threading.Event().wait(1)
    return len(statements) - statements.count("data_version") - before


def test_worker_of_some_queues_follows_pauses(quick, start_worker):
    queues.pause("mail")
    mail, slow, foreign = (quick.enqueue(queue=queue) for queue in ("mail", "slow", "foreign"))
    start_worker(queues=["mail", "slow"])
    until_completed(slow)
    assert stays(are_pending(mail, foreign), OBSERVATION_SECONDS)
    queues.resume("mail")
    until_completed(mail)
    assert stays(are_pending(foreign), OBSERVATION_SECONDS / 2)


def test_burst_ends_when_only_paused_jobs_remain(quick, make_worker):
    queues.pause("mail")
    mail, other = quick.enqueue(queue="mail"), quick.enqueue(queue="other")
    make_worker().run_until_idle(15)
    assert (mail.refresh().status, other.refresh().status) == ("pending", "completed")


# Limits


def test_limit_restricts_the_jobs_that_run_at_once(held, gate, start_worker):
    queues.set_limit("slow", 2)
    enqueue(held, 6, "slow")
    enqueue(held, 3, "other")
    start_worker(slots=8)
    until(gate.is_running(slow=2, other=3))
    assert stays(gate.is_running(slow=2, other=3), OBSERVATION_SECONDS)
    gate.opened.set()
    until(lambda: completed_count("slow") == 6 and completed_count("other") == 3)
    assert gate.max_running == {"slow": 2, "other": 3}


def test_other_queues_use_the_slots_beyond_a_limit(held, gate, start_worker):
    queues.set_limit("slow", 1)
    enqueue(held, 5, "slow", priority=10)
    enqueue(held, 5, "other")
    start_worker(slots=4)
    until(lambda: len(gate.running) == 4)
    gate.opened.set()
    until(lambda: completed_count("slow") == 5 and completed_count("other") == 5)
    assert gate.max_running["slow"] == 1


def test_end_of_a_limited_job_starts_the_next(processors, start_worker):
    """The end of a job wakes the claim loop: this does not wait for a poll or a hint."""

    @processors.register("queues.short")
    def short(job: RunningJob[bool]) -> None:
        if job.input:
            with job.complete():
                pass

    queues.set_limit("slow", 1)
    chains.enqueue_many([short.item(bool(number % 2), queue="slow") for number in range(40)])
    with override_settings(JOBCHAINS=NO_HINTS):
        start_worker(slots=4)
    until(lambda: completed_count("slow") == 40)


def test_priority_applies_among_queues_below_their_limit(processors, make_worker):
    """The jobs run long enough that the worker does not claim ahead."""
    order: list[str] = []

    @processors.register("queues.note")
    def note(job: RunningJob[None]) -> None:
        order.append(job.queue)
        job.signal.wait(0.05)

    queues.set_limit("slow", 1)
    for queue, priority in (("slow", 1), ("other", 2), ("slow", 3), ("other", 4)):
        note.enqueue(queue=queue, priority=priority)
    make_worker(slots=1, max_jobs=10).run_until_idle(15)
    assert order == ["other", "slow", "other", "slow"]


def test_raised_limit_applies_at_once(held, gate, start_worker):
    queues.set_limit("slow", 1)
    enqueue(held, 6, "slow")
    start_worker(slots=5)
    until(gate.is_running(slow=1))
    assert stays(gate.is_running(slow=1), OBSERVATION_SECONDS)
    queues.set_limit("slow", 3)
    until(gate.is_running(slow=3))
    assert stays(gate.is_running(slow=3), OBSERVATION_SECONDS)
    queues.set_limit("slow", None)
    until(gate.is_running(slow=5))


def test_lowered_limit_does_not_stop_running_jobs(held, gate, start_worker):
    worker = start_worker(slots=4)
    enqueue(held, 3, "slow")
    until(gate.is_running(slow=3))
    queues.set_limit("slow", 1)
    until(lambda: worker.components.context.queues.has_limits)
    enqueue(held, 4, "slow")
    assert stays(gate.is_running(slow=3), OBSERVATION_SECONDS)
    gate.max_running.clear()
    gate.opened.set()
    until(lambda: completed_count("slow") == 7)
    assert gate.max_running.get("slow", 1) == 1


def test_limit_applies_to_each_worker(held, gate, start_worker):
    queues.set_limit("slow", 1)
    for _ in range(2):
        start_worker(slots=3)
    enqueue(held, 6, "slow")
    until(gate.is_running(slow=2))
    assert stays(gate.is_running(slow=2), OBSERVATION_SECONDS)


def test_limited_queue_can_be_paused(held, gate, start_worker):
    queues.set_limit("slow", 1)
    queues.pause("slow")
    enqueue(held, 2, "slow")
    start_worker()
    assert stays(gate.is_running(), OBSERVATION_SECONDS)
    queues.resume("slow")
    until(gate.is_running(slow=1))
    assert stays(gate.is_running(slow=1), OBSERVATION_SECONDS / 2)


def test_worker_sends_few_statements_while_a_limited_queue_is_full(held, gate, start_worker):
    queues.set_limit("slow", 1)
    enqueue(held, 20, "slow")
    with statements_of_others() as statements:
        start_worker(slots=4)
        until(gate.is_running(slow=1))
        until(lambda: statements_per_second(statements) < 10)


def test_failed_attempt_frees_its_place_below_the_limit(processors, make_worker):
    @processors.register("queues.fails", max_attempts=3)
    def fails(job: RunningJob[None]) -> None:
        raise ValueError("no")

    queues.set_limit("slow", 1)
    failing = enqueue(fails, 5, "slow")
    make_worker(slots=3).run_until_idle(20)
    assert Job.objects.filter(pk__in=[chain.id for chain in failing], attempt__gt=0).count() == 5


def test_attempt_without_a_lease_counts_while_it_runs(processors, store, start_worker):
    """Its slot is still occupied, and so is the resource that the limit protects."""
    release = threading.Event()
    started: list[Any] = []

    @processors.register("queues.unresponsive")
    def unresponsive(job: RunningJob[None]) -> None:
        started.append(job.id)
        release.wait(30)

    queues.set_limit("slow", 1)
    worker = start_worker(slots=3)
    first, second = enqueue(unresponsive, 2, "slow")
    until(lambda: started)
    [running] = started
    try:
        chains.delete(running)
        until(lambda: not worker.components.context.leases.holds(running))
        enqueue(unresponsive, 1, "slow")  # wakes the claim loop
        assert stays(lambda: started == [running], OBSERVATION_SECONDS)
    finally:
        release.set()
    until(lambda: len(started) == 3)
    assert {first.id, second.id} < set(started)


# What it costs


def test_busy_worker_does_not_read_queue_states_before_each_claim(processors, start_worker, monkeypatch):
    """The interval, about a second, is longer in this test than the time that a busy machine takes for the jobs."""
    monkeypatch.setattr("django_jobchains.worker.queue_limits.MAX_AGE_SECONDS", 60)

    @processors.register("queues.again")
    def again(job: RunningJob[int]) -> Any:
        job.signal.wait(0.005)
        return job.continue_with("queues.again", job.input - 1) if job.input else None

    with override_settings(JOBCHAINS=NO_HINTS), statements_of_others() as statements:
        chain = again.enqueue(100)
        start_worker(poll_seconds=0.2)
        until_completed(chain, 30)
        claims = statements.count("SET status = 'running'")
        reads = statements.count("slot_limit")
    assert claims >= 100
    assert reads < 10
