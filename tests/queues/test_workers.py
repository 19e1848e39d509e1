"""Workers follow what is said about queues while they run."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from django_jobchains import chains, queues
from django_jobchains.models import Chain, Job
from django_jobchains.processors import JobType, Processors, RunningJob
from django_jobchains.store import Store
from tests.worker.fixtures import StartWorker
from tests.worker.statements import Statements, statements_of_others
from tests.worker.waiting import stays, until, until_completed

#: For what must not happen.
A_WHILE = 0.3
NO_HINTS = {"NOTIFIER": {"BACKEND": "django_jobchains.notifications.NullNotifier"}}


@pytest.fixture
def quick(processors: Processors) -> JobType[Any, Any]:
    return processors.register("queues.quick")(lambda job: None)


class Gate:
    """Holds handlers until it is opened, and counts those that run at once."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self._lock = threading.Lock()
        self.running: list[str] = []
        self.most: dict[str, int] = {}

    def __call__(self, job: RunningJob[Any]) -> None:
        with self._lock:
            self.running.append(job.queue)
            self.most[job.queue] = max(self.most.get(job.queue, 0), self.running.count(job.queue))
        try:
            if not self.opened.wait(30):
                raise AssertionError("The gate was not opened.")
        finally:
            with self._lock:
                self.running.remove(job.queue)

    def run(self, **counts: int) -> Callable[[], bool]:
        """Whether so many of each queue run now, and no others."""
        return lambda: {name: self.running.count(name) for name in {*self.running, *counts}} == counts


@pytest.fixture
def gate(make_worker: StartWorker) -> Iterator[Gate]:
    """Opened before the workers are stopped."""
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def held(processors: Processors, gate: Gate) -> JobType[Any, Any]:
    return processors.register("queues.held")(gate)


def enqueue(job_type: JobType[Any, Any], count: int, queue: str, **options: Any) -> list[Chain]:
    return chains.enqueue_many([job_type.item(queue=queue, **options) for _ in range(count)])


def pending(*chains: Chain) -> Callable[[], bool]:
    return lambda: all(chain.refresh().status == "pending" for chain in chains)


def completed(queue: str) -> int:
    return Job.objects.with_status("completed").filter(queue=queue).count()


# Pausing


def test_a_queue_that_was_paused_before_the_start_is_left_alone(
    quick: JobType[Any, Any], start_worker: StartWorker
) -> None:
    queues.pause("mail")
    mail, other = quick.enqueue(queue="mail"), quick.enqueue(queue="other")
    start_worker()
    until_completed(other)
    assert stays(pending(mail), A_WHILE)
    queues.resume("mail")
    until_completed(mail)


def test_a_job_enqueued_after_the_pause_waits_for_the_end_of_it(
    quick: JobType[Any, Any], start_worker: StartWorker
) -> None:
    start_worker()
    until_completed(quick.enqueue(queue="mail"))
    queues.pause("mail")
    mail = quick.enqueue(queue="mail")
    assert stays(pending(mail), A_WHILE)
    queues.resume("mail")
    until_completed(mail)


def test_a_queue_can_be_paused_and_resumed_many_times(quick: JobType[Any, Any], start_worker: StartWorker) -> None:
    """However closely a resumption follows on the worker's last look, it is not missed."""
    start_worker()
    for _ in range(10):
        queues.pause("mail")
        mail = quick.enqueue(queue="mail")
        queues.resume("mail")
        until_completed(mail)


def test_what_runs_goes_on_while_its_queue_is_paused(
    held: JobType[Any, Any], gate: Gate, start_worker: StartWorker
) -> None:
    start_worker(slots=3)
    first = enqueue(held, 1, "mail")[0]
    until(gate.run(mail=1))
    queues.pause("mail")
    second = enqueue(held, 1, "mail")[0]
    assert stays(gate.run(mail=1), A_WHILE)
    gate.opened.set()
    until_completed(first)
    assert stays(pending(second), A_WHILE)


def test_a_pause_that_is_rolled_back_changes_nothing(quick: JobType[Any, Any], start_worker: StartWorker) -> None:
    start_worker()
    with transaction.atomic():
        queues.pause("mail")
        transaction.set_rollback(True)
    until_completed(quick.enqueue(queue="mail"))


def test_without_hints_a_pause_holds_at_once_and_its_end_within_a_poll(
    quick: JobType[Any, Any], start_worker: StartWorker
) -> None:
    with override_settings(JOBCHAINS=NO_HINTS):
        start_worker(poll_seconds=0.2)
        until_completed(quick.enqueue(queue="mail"))
        queues.pause("mail")
        mail = quick.enqueue(queue="mail")
        assert stays(pending(mail), A_WHILE)
        queues.resume("mail")
        until_completed(mail)


def test_a_busy_worker_without_hints_stops_starting_jobs_of_a_paused_queue(
    processors: Processors, start_worker: StartWorker
) -> None:
    @processors.register("queues.again")
    def again(job: RunningJob[None]) -> Any:
        job.signal.wait(0.01)
        return job.continue_with("queues.again", queue=job.queue)

    with override_settings(JOBCHAINS=NO_HINTS):
        start_worker(slots=1, poll_seconds=0.2)
        chains_ = [again.enqueue(queue=queue) for queue in ("mail", "other")]
        until(lambda: completed("mail") > 3)
        queues.pause("mail")
        until(lambda: stays(pending(chains_[0]), A_WHILE))
        before = completed("other")
        until(lambda: completed("other") > before + 20)
        assert stays(pending(chains_[0]), A_WHILE)
        chains.cancel(chains_)


def test_a_worker_of_which_all_queues_are_paused_is_quiet(quick: JobType[Any, Any], start_worker: StartWorker) -> None:
    queues.pause("mail", "slow")
    enqueue(quick, 20, "mail")
    with statements_of_others() as statements:
        start_worker(queues=["mail", "slow"])
        until(lambda: statements_in_a_second(statements) < 10)
        queues.resume("mail")
        until(lambda: completed("mail") == 20)


def statements_in_a_second(statements: Statements) -> int:
    before = len(statements) - statements.count("data_version")
    threading.Event().wait(1)
    return len(statements) - statements.count("data_version") - before


def test_a_worker_that_serves_some_queues_follows_what_is_said_about_them(
    quick: JobType[Any, Any], start_worker: StartWorker
) -> None:
    queues.pause("mail")
    mail, slow, foreign = (quick.enqueue(queue=queue) for queue in ("mail", "slow", "foreign"))
    start_worker(queues=["mail", "slow"])
    until_completed(slow)
    assert stays(pending(mail, foreign), A_WHILE)
    queues.resume("mail")
    until_completed(mail)
    assert stays(pending(foreign), A_WHILE / 2)


def test_a_burst_ends_when_only_paused_jobs_are_left(quick: JobType[Any, Any], make_worker: StartWorker) -> None:
    queues.pause("mail")
    mail, other = quick.enqueue(queue="mail"), quick.enqueue(queue="other")
    make_worker().run_until_idle(15)
    assert (mail.refresh().status, other.refresh().status) == ("pending", "completed")


# Limits


def test_no_more_jobs_of_a_queue_run_at_once_than_its_limit(
    held: JobType[Any, Any], gate: Gate, start_worker: StartWorker
) -> None:
    queues.set_limit("slow", 2)
    enqueue(held, 6, "slow")
    enqueue(held, 3, "other")
    start_worker(slots=8)
    until(gate.run(slow=2, other=3))
    assert stays(gate.run(slow=2, other=3), A_WHILE)
    gate.opened.set()
    until(lambda: completed("slow") == 6 and completed("other") == 3)
    assert gate.most == {"slow": 2, "other": 3}


def test_the_others_have_the_slots_a_limited_queue_may_not_have(
    held: JobType[Any, Any], gate: Gate, start_worker: StartWorker
) -> None:
    queues.set_limit("slow", 1)
    enqueue(held, 5, "slow", priority=10)
    enqueue(held, 5, "other")
    start_worker(slots=4)
    until(lambda: len(gate.running) == 4)
    gate.opened.set()
    until(lambda: completed("slow") == 5 and completed("other") == 5)
    assert gate.most["slow"] == 1


def test_each_job_of_a_limited_queue_is_followed_by_the_next(processors: Processors, start_worker: StartWorker) -> None:
    """The end of one is what makes room for another: no poll is waited for, and no hint."""

    @processors.register("queues.short")
    def short(job: RunningJob[bool]) -> None:
        if job.input:
            with job.complete():
                pass

    queues.set_limit("slow", 1)
    chains.enqueue_many([short.item(bool(number % 2), queue="slow") for number in range(40)])
    with override_settings(JOBCHAINS=NO_HINTS):
        start_worker(slots=4)
    until(lambda: completed("slow") == 40)


def test_a_full_worker_chooses_by_priority_among_queues_that_are_not_full(
    processors: Processors, make_worker: StartWorker
) -> None:
    """Its jobs take long enough that none are claimed ahead."""
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


def test_a_limit_that_is_raised_holds_at_once(held: JobType[Any, Any], gate: Gate, start_worker: StartWorker) -> None:
    queues.set_limit("slow", 1)
    enqueue(held, 6, "slow")
    start_worker(slots=5)
    until(gate.run(slow=1))
    assert stays(gate.run(slow=1), A_WHILE)
    queues.set_limit("slow", 3)
    until(gate.run(slow=3))
    assert stays(gate.run(slow=3), A_WHILE)
    queues.set_limit("slow", None)
    until(gate.run(slow=5))


def test_a_limit_that_is_set_while_more_run_lets_them_end(
    held: JobType[Any, Any], gate: Gate, start_worker: StartWorker
) -> None:
    worker = start_worker(slots=4)
    enqueue(held, 3, "slow")
    until(gate.run(slow=3))
    queues.set_limit("slow", 1)
    until(lambda: worker.parts.queues.has_limits)
    enqueue(held, 4, "slow")
    assert stays(gate.run(slow=3), A_WHILE)
    gate.most.clear()
    gate.opened.set()
    until(lambda: completed("slow") == 7)
    assert gate.most.get("slow", 1) == 1


def test_the_limit_is_each_workers_own(held: JobType[Any, Any], gate: Gate, start_worker: StartWorker) -> None:
    queues.set_limit("slow", 1)
    for _ in range(2):
        start_worker(slots=3)
    enqueue(held, 6, "slow")
    until(gate.run(slow=2))
    assert stays(gate.run(slow=2), A_WHILE)


def test_a_queue_that_is_limited_and_paused_is_left_alone(
    held: JobType[Any, Any], gate: Gate, start_worker: StartWorker
) -> None:
    queues.set_limit("slow", 1)
    queues.pause("slow")
    enqueue(held, 2, "slow")
    start_worker()
    assert stays(gate.run(), A_WHILE)
    queues.resume("slow")
    until(gate.run(slow=1))
    assert stays(gate.run(slow=1), A_WHILE / 2)


def test_a_full_queue_with_a_backlog_keeps_the_worker_quiet(
    held: JobType[Any, Any], gate: Gate, start_worker: StartWorker
) -> None:
    queues.set_limit("slow", 1)
    enqueue(held, 20, "slow")
    with statements_of_others() as statements:
        start_worker(slots=4)
        until(gate.run(slow=1))
        until(lambda: statements_in_a_second(statements) < 10)


def test_jobs_whose_handlers_fail_give_their_place_back(processors: Processors, make_worker: StartWorker) -> None:
    @processors.register("queues.fails", max_attempts=3)
    def fails(job: RunningJob[None]) -> None:
        raise ValueError("no")

    queues.set_limit("slow", 1)
    found = enqueue(fails, 5, "slow")
    make_worker(slots=3).run_until_idle(20)
    until(lambda: all(chain.refresh().status in ("failed", "pending") for chain in found))
    assert Job.objects.filter(attempt__gt=0).count() == 5


def test_an_attempt_that_lost_its_lease_counts_while_it_runs(
    processors: Processors, store: Store, start_worker: StartWorker
) -> None:
    """Its slot is not free, and what the limit protects is not either."""
    release = threading.Event()
    started: list[Any] = []

    @processors.register("queues.deaf")
    def deaf(job: RunningJob[None]) -> None:
        started.append(job.id)
        release.wait(30)

    queues.set_limit("slow", 1)
    worker = start_worker(slots=3)
    first, second = enqueue(deaf, 2, "slow")
    until(lambda: started)
    [running] = started
    try:
        chains.delete(running)
        until(lambda: not worker.parts.leases.holds(running))
        enqueue(deaf, 1, "slow")  # a reason to look
        assert stays(lambda: started == [running], A_WHILE)
    finally:
        release.set()
    until(lambda: len(started) == 3)
    assert {first.id, second.id} < set(started)


# What it costs


def test_a_busy_worker_reads_what_was_said_about_once_a_second(
    processors: Processors, start_worker: StartWorker
) -> None:
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
    assert reads < claims / 3
