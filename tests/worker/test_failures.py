"""The worker recovers from the failure of any component, and every job ends."""

import threading

import pytest
from django.db import InterfaceError, OperationalError

from django_jobchains import chains
from django_jobchains.attempts.job_attempt import JobAttempt
from django_jobchains.db import connections
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, FailJob, Lease, RescheduleJob, RunningJob
from django_jobchains.store.attempts import Attempts
from django_jobchains.telemetry import add_sink, remove_sink
from django_jobchains.telemetry.events import AttemptEnded, OutcomeDelayed, ThreadFailed
from django_jobchains.worker.slots import Backlog
from tests.store.methods import method as method_of
from tests.store.methods import replace_method
from tests.support.databases import without_column
from tests.support.waiting import stays, until, until_completed
from tests.support.workers import completed

ERRORS = (ValueError("a bug"), SystemExit(3), OperationalError("the server closed the connection"), MemoryError())
NO_REPLY = (OperationalError("cut"),)


class FailsFirst:
    """A function that first raises each of some errors, and then works. None stands for a call that works.

    ``late``: the function is called before the error is raised.
    """

    def __init__(self, function, errors, *, late=False):
        self.function = function
        self.errors = list(errors)
        self.late = late
        self.calls = 0

    def __get__(self, instance, owner):
        return lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __call__(self, *args, **kwargs):
        self.calls += 1
        error = self.errors.pop(0) if self.errors else None
        if error is None:
            return self.function(*args, **kwargs)
        if self.late:
            self.function(*args, **kwargs)
        raise error


def bug(*args, **kwargs):
    raise ValueError("a bug")


@pytest.fixture(autouse=True)
def _short_intervals(settings, monkeypatch):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1, "BACKOFF_INITIAL_SECONDS": 0.1}
    monkeypatch.setattr("django_jobchains.worker.threads.LAST_WAIT_SECONDS", 0.2)


@pytest.fixture
def mixed(processors):
    """A type whose input decides whether a job completes, continues, is rescheduled once or fails."""

    @processors.register("worker.mixed", lease=Lease(1))
    def mixed(job: RunningJob[str]):
        if job.input == "continue":
            return job.continue_with("worker.mixed", "complete")
        if job.input == "reschedule" and job.attempt == 1:
            raise RescheduleJob(delay=0)
        if job.input == "fail":
            raise FailJob("requested")
        return job.input

    return mixed


@pytest.fixture
def all_end(mixed, start_worker):
    """Return a function that enqueues jobs that end in different ways, and waits until a worker has run them."""

    def all_end(**options):
        chains.enqueue_many([mixed.item(kind) for kind in ["complete", "continue", "reschedule", "fail"] * 3])
        worker = start_worker(**{"poll_seconds": 0.3, **options})
        until(lambda: completed() == 12 and Job.objects.with_status("failed").count() == 3, what=remaining)
        return worker

    return all_end


def remaining():
    return list(Job.objects.incomplete().values_list("input", "status", "attempt", "crashes", "leased_by"))


LOOPS = ("jobs.claim", "jobs.next_due", "leases.reap")


@pytest.mark.parametrize("method", [*LOOPS, "attempts.finish", "attempts.reschedule", "attempts.fail", "leases.renew"])
def test_failing_step_is_retried(all_end, store, monkeypatch, events, method):
    failing = FailsFirst(method_of(store, method), ERRORS)
    replace_method(monkeypatch, store, method, failing)
    all_end()
    if method in LOOPS:
        until(lambda: not failing.errors and failing.calls > len(ERRORS))
    assert not any(event.fatal for event in events.of(ThreadFailed))


@pytest.mark.parametrize("late", [False, True])
def test_error_in_a_slot_loses_no_job(all_end, monkeypatch, late):
    monkeypatch.setattr(JobAttempt, "run", FailsFirst(JobAttempt.run, ERRORS, late=late))
    all_end()


def test_claim_without_a_reply_loses_no_job(all_end, store, monkeypatch):
    monkeypatch.setattr(store.jobs, "claim", FailsFirst(store.jobs.claim, NO_REPLY, late=True))
    all_end()


def test_result_without_a_reply_is_written_once(all_end, store, monkeypatch):
    """The commit succeeded without a reply: the retry finds nothing to do, and undoes nothing."""
    for method in ("finish", "reschedule", "fail"):
        monkeypatch.setattr(store.attempts, method, FailsFirst(getattr(store.attempts, method), NO_REPLY, late=True))
    all_end()
    assert Job.objects.count() == 15
    assert not Job.objects.filter(crashes__gt=0).exists()


def test_jobs_claimed_ahead_are_handed_back_after_a_database_outage(processors, quick, start_worker, gate, monkeypatch):
    """They are no longer in the queue of a slot: if they were forgotten, their leases would be renewed forever."""
    block = processors.register("worker.block")(lambda job: gate.wait(30))
    # As after many short jobs: the worker claims ahead.
    monkeypatch.setattr(Backlog, "count_seconds", lambda backlog, seconds: None)
    fails = FailsFirst(Attempts.hand_back, 2 * NO_REPLY)
    monkeypatch.setattr(Attempts, "hand_back", fails)
    worker = start_worker(slots=1)
    worker.components.slots.backlog.average_seconds = 0.001
    chains.enqueue_many([block.item(priority=1), *(quick.item() for _ in range(5))])
    until(lambda: fails.calls >= 3 and Job.objects.with_status("pending").count() == 5)
    until(lambda: len(worker.components.context.leases) == 1)


def test_attempt_that_cannot_be_created_does_not_affect_the_rest_of_its_claim(all_end, monkeypatch):
    init, failures = JobAttempt.__init__, [MemoryError()]

    def fails_for_one(self, job, *args, **kwargs):
        if '"fail"' in job.input and failures:
            raise failures.pop()
        init(self, job, *args, **kwargs)

    monkeypatch.setattr(JobAttempt, "__init__", fails_for_one)
    all_end(slots=12)


def test_failure_that_cannot_be_cleaned_up_ends_no_thread(all_end, store, monkeypatch):
    """Closing the broken connection raises too."""
    errors = (InterfaceError("connection already closed"), ValueError("a bug"))
    mend, broken = connections._repair, FailsFirst(connections._repair, errors)
    in_slot = lambda: "slot" in threading.current_thread().name  # noqa: E731
    monkeypatch.setattr(connections, "_repair", lambda connection: (mend if in_slot() else broken)(connection))
    monkeypatch.setattr(store.jobs, "claim", FailsFirst(store.jobs.claim, ERRORS))
    monkeypatch.setattr(store.attempts, "finish", FailsFirst(store.attempts.finish, ERRORS))
    all_end()
    assert not broken.errors


@pytest.mark.parametrize("error", [RuntimeError("no disk"), MemoryError()])
def test_error_in_a_sink_does_not_affect_jobs(all_end, error):
    def broken(event):
        raise error

    add_sink(broken)
    try:
        all_end()
    finally:
        remove_sink(broken)


@pytest.mark.parametrize("method", ["jobs.claim", "attempts.finish", "leases.renew", "leases.reap"])
def test_component_that_always_fails_ends_the_worker_with_code_1(
    mixed, make_worker, store, monkeypatch, events, method, gate
):
    monkeypatch.setattr("django_jobchains.worker.threads.LAST_WAIT_SECONDS", 0.01)
    replace_method(monkeypatch, store, method, bug)
    if method == "attempts.finish":  # the outcome cannot be written as a failed try either
        monkeypatch.setattr(store.attempts, "reschedule", bug)
        mixed.enqueue("complete")
    elif method == "leases.renew":
        object.__setattr__(mixed.processor, "function", lambda job: gate.wait(20))
        mixed.enqueue("complete")
    assert make_worker(shutdown_seconds=0).run() == 1
    failures = events.of(ThreadFailed)
    assert ([event.failures for event in failures], failures[-1].fatal) == (list(range(1, 11)), True)


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
    def continues(job: RunningJob[int]):
        if job.input < 0:
            return None
        together.wait()
        return job.continue_with("worker.continues", -1)

    enqueued = chains.enqueue_many([continues.item(number) for number in range(10)])
    poisoned = enqueued[4]
    twin = continues.enqueue(-1, delay=3600).current_job
    Job.objects.filter(pk=twin.pk).update(chain_id=poisoned.id, chain_index=1)
    start_worker(slots=10)
    until(lambda: completed() == 18, what=remaining)
    first = until(lambda: Job.objects.filter(pk=poisoned.id, status="pending").first(), what=remaining)
    assert first.attempt == 1
    assert "DuplicateJobId" in str(first.last_error)
    assert FailedAttempt.objects.filter(job=first).count() == 1
    until(lambda: len(events.of(AttemptEnded)) == 19)
    assert stays(lambda: len(events.of(AttemptEnded)) == 19, 0.2)


def test_outcome_waits_for_a_column_that_is_missing(processors, start_worker, gate, events, caplog):
    """As during a deployment, or while a privilege is missing. The handler is not called again."""
    attempts = []

    @processors.register("worker.returns")
    def returns(job):
        attempts.append(job.attempt)
        gate.wait(30)

    enqueued = chains.enqueue_many([returns.item() for _ in range(3)])
    start_worker(slots=3)
    until(lambda: len(attempts) == 3)
    with without_column("django_jobchains_job", "finished_at"):
        gate.set()
        until(lambda: len(events.of(OutcomeDelayed)) == 3)
    for chain in enqueued:
        until_completed(chain)
    assert attempts == [1, 1, 1]
    assert not FailedAttempt.objects.exists()
    assert "Traceback" not in caplog.text
    assert all("finished_at" in event.error for event in events.of(OutcomeDelayed))


def test_completion_by_hand_is_not_mistaken_for_the_outcome_that_could_not_be_written(
    processors, start_worker, store, monkeypatch, events
):
    finish, fails = store.attempts.finish, [OperationalError("cut")]

    def complete_by_hand(*args):
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

    def waits_for_a_batch(*args):
        is_batch_full.wait(30)
        return finish(*args)

    @processors.register("worker.two_kinds")
    def two_kinds(job):
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
