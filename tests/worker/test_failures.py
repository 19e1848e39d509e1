"""The worker recovers from the failure of any component, and every job ends."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError

from django_jobchains import chains
from django_jobchains.attempts.job_attempt import JobAttempt
from django_jobchains.db import connections
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, FailJob, JobType, Lease, RescheduleJob, RunningJob
from django_jobchains.store.attempts import Attempts
from django_jobchains.telemetry import Event, add_sink, remove_sink
from django_jobchains.telemetry.events import AttemptEnded, ThreadFailed
from django_jobchains.worker.slots import Backlog
from tests.store.methods import method as method_of
from tests.store.methods import replace_method
from tests.support.waiting import stays, until, until_completed

ERRORS = (ValueError("a bug"), SystemExit(3), OperationalError("the server closed the connection"), MemoryError())


class FailsFirst:
    """A function that first raises each of some errors, and then works. None stands for a call that works.

    ``late``: the function is called before the error is raised.
    """

    def __init__(
        self, function: Callable[..., Any], errors: tuple[BaseException | None, ...], *, late: bool = False
    ) -> None:
        self.function = function
        self.errors = list(errors)
        self.late = late
        self.calls = 0

    def __get__(self, instance: Any, owner: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        error = self.errors.pop(0) if self.errors else None
        if error is None:
            return self.function(*args, **kwargs)
        if self.late:
            self.function(*args, **kwargs)
        raise error


@pytest.fixture(autouse=True)
def _short_intervals(settings, monkeypatch):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1, "BACKOFF_INITIAL_SECONDS": 0.1}
    monkeypatch.setattr("django_jobchains.worker.threads.LAST_WAIT_SECONDS", 0.2)


@pytest.fixture
def mixed(processors):
    """A handler whose input decides whether it completes, continues, reschedules once or fails."""

    @processors.register("worker.mixed", lease=Lease(1))
    def mixed(job: RunningJob[str]) -> Any:
        if job.input == "continue":
            return job.continue_with("worker.mixed", "complete")
        if job.input == "reschedule" and job.attempt == 1:
            raise RescheduleJob(delay=0)
        if job.input == "fail":
            raise FailJob("requested")
        return job.input

    return mixed


def enqueue_mixed(mixed: JobType[Any, Any]) -> None:
    kinds = ["complete", "continue", "reschedule", "fail"] * 3
    chains.enqueue_many([mixed.item(kind) for kind in kinds])


def all_ended() -> bool:
    return Job.objects.with_status("completed").count() == 12 and Job.objects.with_status("failed").count() == 3


def remaining() -> list[Any]:
    return list(Job.objects.incomplete().values_list("input", "status", "attempt", "crashes", "leased_by"))


@pytest.mark.parametrize(
    "method",
    [
        "jobs.claim",
        "jobs.next_due",
        "attempts.finish",
        "attempts.reschedule",
        "attempts.fail",
        "leases.renew",
        "leases.reap",
    ],
)
def test_failing_step_is_retried(mixed, start_worker, store, monkeypatch, events, method):
    failing = FailsFirst(method_of(store, method), ERRORS)
    replace_method(monkeypatch, store, method, failing)
    enqueue_mixed(mixed)
    start_worker(poll_seconds=0.3)
    until(all_ended, what=remaining)
    if method in ("jobs.claim", "jobs.next_due", "leases.reap"):
        until(lambda: not failing.errors and failing.calls > len(ERRORS))
    assert not any(event.fatal for event in events.of(ThreadFailed))


def test_claim_without_a_reply_loses_no_job(mixed, start_worker, store, monkeypatch):
    monkeypatch.setattr(store.jobs, "claim", FailsFirst(store.jobs.claim, (OperationalError("cut"),), late=True))
    enqueue_mixed(mixed)
    start_worker(poll_seconds=0.3)
    until(all_ended, what=remaining)


def test_result_without_a_reply_is_written_once(mixed, start_worker, store, monkeypatch, events):
    """The commit succeeded without a reply: the retry finds nothing to do, and undoes nothing."""
    for method in ("finish", "reschedule", "fail"):
        write = FailsFirst(getattr(store.attempts, method), (OperationalError("cut"),), late=True)
        monkeypatch.setattr(store.attempts, method, write)
    enqueue_mixed(mixed)
    start_worker(poll_seconds=0.3)
    until(all_ended, what=remaining)
    assert Job.objects.count() == 15
    assert not Job.objects.filter(crashes__gt=0).exists()


def test_error_in_a_slot_loses_no_job(mixed, start_worker, monkeypatch):
    monkeypatch.setattr(JobAttempt, "run", FailsFirst(JobAttempt.run, ERRORS))
    enqueue_mixed(mixed)
    start_worker(poll_seconds=0.3)
    until(all_ended, what=remaining)


def test_jobs_claimed_ahead_are_handed_back_after_a_database_outage(processors, start_worker, monkeypatch):
    """They are no longer in the queue of a slot: if they were forgotten, their leases would be renewed forever."""
    gate = threading.Event()
    quick: JobType[Any, Any] = processors.register("worker.quick")(lambda job: None)
    block: JobType[Any, Any] = processors.register("worker.block")(lambda job: gate.wait(30))
    # As after many short jobs: the worker claims ahead.
    monkeypatch.setattr(Backlog, "count_seconds", lambda backlog, seconds: None)
    fails = FailsFirst(Attempts.hand_back, (OperationalError("gone"), OperationalError("gone")))
    monkeypatch.setattr(Attempts, "hand_back", fails)
    worker = start_worker(slots=1)
    worker.components.slots.backlog.average_seconds = 0.001
    chains.enqueue_many([block.item(priority=1), *(quick.item() for _ in range(5))])
    try:
        until(lambda: fails.calls >= 3 and Job.objects.with_status("pending").count() == 5)
        until(lambda: len(worker.components.context.leases) == 1)
    finally:
        gate.set()


def test_failing_cleanup_of_an_attempt_loses_no_job(mixed, start_worker, monkeypatch):
    monkeypatch.setattr(JobAttempt, "run", FailsFirst(JobAttempt.run, ERRORS, late=True))
    enqueue_mixed(mixed)
    start_worker(poll_seconds=0.3)
    until(all_ended, what=remaining)


def test_attempt_that_cannot_be_created_does_not_affect_the_rest_of_its_claim(mixed, start_worker, monkeypatch):
    init = JobAttempt.__init__
    failures = [MemoryError()]

    def fails_for_one(self: JobAttempt, job: Any, *args: Any, **kwargs: Any) -> None:
        if '"fail"' in job.input and failures:
            raise failures.pop()
        init(self, job, *args, **kwargs)

    monkeypatch.setattr(JobAttempt, "__init__", fails_for_one)
    enqueue_mixed(mixed)
    start_worker(slots=12, poll_seconds=0.3)
    until(all_ended, what=remaining)


def test_failure_that_cannot_be_cleaned_up_ends_no_thread(mixed, start_worker, store, monkeypatch):
    """Closing the broken connection raises too."""
    errors = (InterfaceError("connection already closed"), ValueError("a bug"))
    mend, broken = connections._repair, FailsFirst(connections._repair, errors)
    in_slot = lambda: "slot" in threading.current_thread().name  # noqa: E731
    monkeypatch.setattr(connections, "_repair", lambda connection: (mend if in_slot() else broken)(connection))
    monkeypatch.setattr(store.jobs, "claim", FailsFirst(store.jobs.claim, ERRORS))
    monkeypatch.setattr(store.attempts, "finish", FailsFirst(store.attempts.finish, ERRORS))
    enqueue_mixed(mixed)
    start_worker(poll_seconds=0.3)
    until(all_ended, what=remaining)
    assert not broken.errors


@pytest.mark.parametrize("error", [RuntimeError("no disk"), MemoryError()])
def test_error_in_a_sink_does_not_affect_jobs(mixed, start_worker, error):
    def broken(event: Event) -> None:
        raise error

    add_sink(broken)
    try:
        enqueue_mixed(mixed)
        start_worker(poll_seconds=0.3)
        until(all_ended, what=remaining)
    finally:
        remove_sink(broken)


@pytest.mark.parametrize("method", ["jobs.claim", "attempts.finish", "leases.renew", "leases.reap"])
def test_component_that_always_fails_ends_the_worker_with_code_1(
    mixed, make_worker, store, monkeypatch, events, method
):
    def bug(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("a bug")

    monkeypatch.setattr("django_jobchains.worker.threads.LAST_WAIT_SECONDS", 0.01)
    replace_method(monkeypatch, store, method, bug)
    gate = threading.Event()
    if method == "attempts.finish":  # the outcome cannot be written as a failed try either
        monkeypatch.setattr(store.attempts, "reschedule", bug)
        mixed.enqueue("complete")
    elif method == "leases.renew":
        hold_a_lease(mixed, gate)
    assert make_worker(shutdown_seconds=0).run() == 1
    gate.set()
    failures = [event.failures for event in events.of(ThreadFailed)]
    assert (failures, events.of(ThreadFailed)[-1].fatal) == (list(range(1, 11)), True)


def hold_a_lease(mixed: JobType[Any, Any], gate: threading.Event) -> None:
    processor = mixed.processor
    assert processor is not None
    object.__setattr__(processor, "function", lambda job: gate.wait(20))
    mixed.enqueue("complete")


@pytest.mark.parametrize("error", [OperationalError("no route"), InterfaceError("connection already closed")])
def test_worker_waits_for_an_unavailable_database(mixed, start_worker, store, monkeypatch, error):
    monkeypatch.setattr("django_jobchains.worker.threads.LAST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(store.jobs, "claim", FailsFirst(store.jobs.claim, (error,) * 25))
    chain = mixed.enqueue("complete")
    worker = start_worker(poll_seconds=0.3)
    until_completed(chain)
    assert not worker.failed


def test_outcome_that_cannot_be_written_does_not_affect_its_batch(processors, start_worker, events):
    """One of ten continuations conflicts with an existing row. Its job is retried, as after an error in
    ``complete()``."""
    together = threading.Barrier(10, timeout=15)

    @processors.register("worker.continues", backoff=Backoff(3600))
    def continues(job: RunningJob[int]) -> Any:
        if job.input < 0:
            return None
        together.wait()
        return job.continue_with("worker.continues", -1)

    enqueued = chains.enqueue_many([continues.item(number) for number in range(10)])
    poisoned = enqueued[4]
    twin = continues.enqueue(-1, delay=3600).current_job
    Job.objects.filter(pk=twin.pk).update(chain_id=poisoned.id, chain_index=1)
    start_worker(slots=10)
    until(lambda: Job.objects.with_status("completed").count() == 18, what=remaining)
    first = until(lambda: Job.objects.filter(pk=poisoned.id, status="pending").first(), what=remaining)
    assert first.attempt == 1
    assert "DuplicateJobId" in str(first.last_error)
    assert FailedAttempt.objects.filter(job=first).count() == 1
    until(lambda: len(events.of(AttemptEnded)) == 19)
    assert stays(lambda: len(events.of(AttemptEnded)) == 19, 0.2)


def test_completion_by_hand_is_not_mistaken_for_the_outcome_that_could_not_be_written(
    processors, start_worker, store, monkeypatch, events
):
    finish, fails = store.attempts.finish, [OperationalError("cut")]

    def complete_by_hand(*args: Any) -> Any:
        if fails:
            chains.complete(chain.id, "by hand")
            raise fails.pop()
        return finish(*args)

    monkeypatch.setattr(store.attempts, "finish", complete_by_hand)
    chain = processors.register("worker.returns")(lambda job: "by the handler").enqueue()
    start_worker()
    (event,) = until(lambda: events.of(AttemptEnded))
    assert event.ending == "abandoned"
    assert chain.refresh().output == "by hand"


def test_attempt_is_reported_once_if_its_batch_is_retried(processors, start_worker, store, monkeypatch, events):
    """Each outcome of a batch is written on its own after a bug, and the database goes away in the middle of it."""
    is_batch_full = threading.Event()
    fail = FailsFirst(store.attempts.fail, (ValueError("a bug"), None, OperationalError("cut")))
    finish = store.attempts.finish

    def waits_for_a_batch(*args: Any) -> Any:
        is_batch_full.wait(30)
        return finish(*args)

    @processors.register("worker.two_kinds")
    def two_kinds(job: RunningJob[bool]) -> None:
        if job.input:
            raise FailJob("requested")

    monkeypatch.setattr(store.attempts, "finish", waits_for_a_batch)
    monkeypatch.setattr(store.attempts, "fail", fail)
    worker = start_worker(slots=7)
    two_kinds.enqueue(False)
    until(lambda: Job.objects.with_status("running").count() == 1)
    chains.enqueue_many([two_kinds.item(number % 2 == 0) for number in range(6)])
    until(lambda: Job.objects.with_status("running").count() == 7 and not worker.components.slots.running)
    is_batch_full.set()
    until(lambda: Job.objects.incomplete().count() == 0 and not fail.errors, what=remaining)
    until(lambda: len({event.job_id for event in events.of(AttemptEnded)}) == 7)
    assert stays(lambda: len(events.of(AttemptEnded)) == 7, 0.3)
