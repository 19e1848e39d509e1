"""Running workers follow pauses and limits of queues."""

import threading

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import override_settings

from django_jobchains import chains, limits, queues
from django_jobchains.models import Job
from django_jobchains.testing import run_due_jobs
from tests.support.connections import holding
from tests.support.statements import statements_of_others
from tests.support.waiting import stays, until, until_completed
from tests.support.workers import completed

#: How long a test observes that something does not happen.
OBSERVATION_SECONDS = 0.3
without_hints = override_settings(JOBCHAINS={"NOTIFIER": {"BACKEND": "django_jobchains.notifications.NullNotifier"}})


class Gate:
    """A handler that blocks until the gate is opened, and counts the attempts that run at once in each queue."""

    def __init__(self, opened):
        self._opened = opened
        self._lock = threading.Lock()
        self.running = []
        self.max_running = {}

    def __call__(self, job):
        with self._lock:
            self.running.append(job.queue)
            self.max_running[job.queue] = max(self.max_running.get(job.queue, 0), self.running.count(job.queue))
        try:
            assert self._opened.wait(30), "The gate was not opened."
        finally:
            with self._lock:
                self.running.remove(job.queue)

    def until(self, **counts):
        """Wait until exactly these numbers of attempts run in these queues, and check that no more are started."""
        until(lambda: self.counts() == counts, what=self.counts)
        assert stays(lambda: self.counts() == counts, OBSERVATION_SECONDS), self.counts()

    def counts(self):
        return {name: self.running.count(name) for name in {*self.running}}


@pytest.fixture
def held(gate):
    return Gate(gate)


@pytest.fixture
def enqueue(processors, held):
    """Return a function that enqueues jobs whose handler waits for the gate."""
    job_type = processors.register("queues.held")(held)

    def enqueue(queue, count=1, **options):
        return chains.enqueue_many([job_type.item(queue=queue, **options) for _ in range(count)])

    return enqueue


def assert_still_pending(*enqueued):
    assert stays(lambda: all(chain.refresh().status == "pending" for chain in enqueued), OBSERVATION_SECONDS)


# Pausing


def test_worker_skips_a_queue_that_is_paused_and_stays_quiet(quick, start_worker):
    queues.pause("mail", "slow")
    mail = chains.enqueue_many([quick.item(queue="mail") for _ in range(20)])
    foreign, other = quick.enqueue(queue="foreign"), quick.enqueue(queue="other")
    with statements_of_others() as statements:
        start_worker(queues=["mail", "slow", "other"])
        until_completed(other)
        until(lambda: statements.per_second() < 10)
    assert_still_pending(*mail, foreign)
    queues.resume("mail")
    until(lambda: completed(queue="mail") == 20)
    assert_still_pending(foreign)


def test_no_resumption_is_missed(quick, start_worker):
    """A queue may be resumed right after the worker has queried it."""
    start_worker()
    for _ in range(10):
        queues.pause("mail")
        mail = quick.enqueue(queue="mail")
        queues.resume("mail")
        until_completed(mail)


def test_pause_does_not_stop_running_jobs(enqueue, held, gate, start_worker):
    start_worker(slots=3)
    [first] = enqueue("mail")
    held.until(mail=1)
    queues.pause("mail")
    [second] = enqueue("mail")
    held.until(mail=1)
    gate.set()
    until_completed(first)
    assert_still_pending(second)
    queues.resume("mail")
    until_completed(second)


def test_pause_that_is_rolled_back_has_no_effect(quick, start_worker):
    start_worker()
    with transaction.atomic():
        queues.pause("mail")
        transaction.set_rollback(True)
    until_completed(quick.enqueue(queue="mail"))


@without_hints
def test_queue_is_paused_at_once_and_resumed_by_a_poll_without_hints(quick, start_worker):
    start_worker(poll_seconds=0.2)
    until_completed(quick.enqueue(queue="mail"))
    queues.pause("mail")
    mail = quick.enqueue(queue="mail")
    assert_still_pending(mail)
    queues.resume("mail")
    until_completed(mail)


@without_hints
def test_busy_worker_without_hints_notices_a_pause(processors, start_worker):
    @processors.register("queues.again")
    def again(job):
        job.signal.wait(0.01)
        return job.continue_with("queues.again", queue=job.queue)

    def has_only_others():
        mail, other = completed(queue="mail"), completed(queue="other")
        until(lambda: completed(queue="other") > other + 10)
        return completed(queue="mail") == mail

    start_worker(slots=1, poll_seconds=0.2)
    enqueued = [again.enqueue(queue=queue) for queue in ("mail", "other")]
    until(lambda: completed(queue="mail") > 3)
    queues.pause("mail")
    until(has_only_others)
    chains.cancel(enqueued)


def test_burst_ends_when_only_paused_jobs_remain(quick, make_worker):
    queues.pause("mail")
    mail, other = quick.enqueue(queue="mail"), quick.enqueue(queue="other")
    make_worker().run_until_idle(15)
    assert (mail.refresh().status, other.refresh().status) == ("pending", "completed")


# Limits


def test_limit_restricts_the_jobs_that_run_at_once(enqueue, held, gate, start_worker):
    """The other queues use the slots beyond it, even for jobs of a lower priority."""
    queues.set_limit("slow", 2)
    enqueue("slow", 20, priority=10)
    enqueue("other", 3)
    with statements_of_others() as statements:
        start_worker(slots=8)
        held.until(slow=2, other=3)
        until(lambda: statements.per_second() < 10)
    gate.set()
    until(lambda: completed(queue="slow") == 20)
    assert held.max_running == {"slow": 2, "other": 3}


@without_hints
def test_end_of_a_limited_job_starts_the_next(processors, start_worker):
    """The end of a job wakes the claim loop: this does not wait for a poll or a hint."""

    @processors.register("queues.short")
    def short(job):
        if job.input:
            with job.complete():
                pass

    queues.set_limit("slow", 1)
    chains.enqueue_many([short.item(bool(number % 2), queue="slow") for number in range(40)])
    start_worker(slots=4)
    until(lambda: completed(queue="slow") == 40)


def test_priority_applies_among_queues_below_the_limits_of_a_worker(processors, make_worker):
    """The jobs run long enough that the worker does not claim ahead."""
    order = []

    @processors.register("queues.note")
    def note(job):
        order.append(job.queue)
        job.signal.wait(0.05)

    for queue, priority in (("slow", 1), ("other", 2), ("slow", 3), ("other", 4)):
        note.enqueue(queue=queue, priority=priority)
    make_worker(slots=1, max_jobs=10, queue_slots={"slow": 1}).run_until_idle(15)
    assert order == ["other", "slow", "other", "slow"]


def test_limit_of_a_running_worker_is_raised_lowered_paused_and_removed(enqueue, held, gate, start_worker):
    queues.set_limit("slow", 1)
    queues.pause("slow")
    enqueue("slow", 10)
    worker = start_worker(slots=5)
    held.until()
    queues.resume("slow")
    held.until(slow=1)
    queues.set_limit("slow", 3)
    held.until(slow=3)
    queues.set_limit("slow", 1)
    until(lambda: worker.components.context.queues.has_limits)
    held.until(slow=3)  # running jobs are not stopped
    queues.set_limit("slow", None)
    held.until(slow=5)
    queues.set_limit("slow", 1)  # noticed when a slot is free
    held.max_running.clear()
    gate.set()
    until(lambda: completed(queue="slow") == 10)
    assert held.max_running.get("slow", 1) == 1


def test_limit_holds_for_all_workers_together(enqueue, held, gate, start_worker):
    queues.set_limit("slow", 3)
    for _ in range(3):
        start_worker(slots=2)
    enqueue("slow", 9)
    held.until(slow=3)
    gate.set()
    until(lambda: completed(queue="slow") == 9)
    assert held.max_running == {"slow": 3}


def test_a_free_place_is_used_by_other_workers_at_once(processors, gate, start_worker):
    """Also by workers of other types, and not after the poll interval, which is a minute."""
    first = processors.register("queues.first")(lambda job: gate.wait(30))
    second = processors.register("queues.second")(lambda job: None)
    queues.set_limit("slow", 1)
    start_worker(slots=1, types=["queues.first"])
    first.enqueue(queue="slow")
    until(lambda: Job.objects.filter(status="running").exists())
    start_worker(slots=1, types=["queues.second"])
    chain = second.enqueue(queue="slow")
    assert_still_pending(chain)
    gate.set()
    until(lambda: chain.refresh().status == "completed", 15)


def test_own_slots_of_a_worker_are_limited_beside_the_queue(enqueue, held, start_worker):
    queues.set_limit("slow", 3)
    for _ in range(2):
        start_worker(slots=4, queue_slots={"slow": 2, "mail": 1})
    enqueue("slow", 6)
    enqueue("mail", 6)
    held.until(slow=3, mail=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mail": 0}, r"queue_slots=0 is not a whole number from 1"),
        ({"": 1}, r"queue_slots='' is not a name"),
        (["mail"], r'is not a dict of queues and numbers, as in \{"mail": 2\}'),
    ],
)
def test_invalid_own_slots_are_refused(quick, make_worker, given, message):
    with pytest.raises(ImproperlyConfigured, match=message):
        make_worker(queue_slots=given)


@pytest.mark.postgresql
def test_a_queue_that_another_worker_decides_about_is_tried_again_soon(quick, make_worker):
    """It is not full, so the next due time includes its jobs, and records are queried again."""
    queues.set_limit("slow", 1)
    quick.enqueue(queue="slow")
    served = make_worker().components.context.queues
    served.claims_for(1)
    limited = served.limited["slow"]
    other = holding(lambda store: store.queues.start_within(limited, lambda places: [places]))
    assert served.start(limited, 1, lambda limit: [limit]) == []
    assert served.met_lock
    assert served.open() == (None, [])
    assert other.result() == [1]
    assert served.start(limited, 1, lambda limit: [limit]) == [1]
    assert not served.met_lock


def test_a_limit_of_0_starts_nothing(quick, start_worker):
    limits.set(queue="slow", concurrency=0)
    slow, other = quick.enqueue(queue="slow"), quick.enqueue(queue="other")
    with statements_of_others() as statements:
        start_worker()
        until_completed(other)
        until(lambda: statements.per_second() < 10)
    assert_still_pending(slow)
    limits.reset(queue="slow")
    until_completed(slow)


def test_limits_hold_in_tests(processors):
    sizes = []
    batch = processors.register("queues.batch", batch_limit=10)(lambda batch: sizes.append(len(batch)))
    chains.enqueue_many([batch.item(queue=queue) for queue in ("slow", "slow", "slow", "other")])
    limits.set(queue="slow", concurrency=0)
    assert [outcome.job.queue for outcome in run_due_jobs()] == ["other"]
    limits.set(queue="slow", concurrency=2)
    run_due_jobs()
    assert sizes == [1, 2, 1]


def test_failed_attempt_frees_its_place_below_the_limit(processors, make_worker):
    @processors.register("queues.fails", max_attempts=3)
    def fails(job):
        raise ValueError("no")

    queues.set_limit("slow", 1)
    failing = chains.enqueue_many([fails.item(queue="slow") for _ in range(5)])
    make_worker(slots=3).run_until_idle(20)
    assert all(chain.refresh().current_job.attempt > 0 for chain in failing)


def test_attempt_without_a_lease_counts_while_it_runs(processors, gate, start_worker):
    """Its slot is still occupied, and so is the resource that the limit protects."""
    started = []

    @processors.register("queues.unresponsive")
    def unresponsive(job):
        started.append(job.id)
        gate.wait(30)

    queues.set_limit("slow", 1)
    worker = start_worker(slots=3)
    for _ in range(2):
        unresponsive.enqueue(queue="slow")
    until(lambda: started)
    [running] = started
    chains.delete(running)
    until(lambda: not worker.components.context.leases.holds(running))
    unresponsive.enqueue(queue="slow")  # wakes the claim loop
    assert stays(lambda: started == [running], OBSERVATION_SECONDS)
    gate.set()
    until(lambda: len(started) == 3)


@without_hints
def test_busy_worker_does_not_read_queue_states_before_each_claim(processors, start_worker, monkeypatch):
    """The interval, about a second, is longer in this test than the time that a busy machine takes for the jobs."""
    monkeypatch.setattr("django_jobchains.worker.queue_limits.MAX_AGE_SECONDS", 60)

    @processors.register("queues.again")
    def again(job):
        job.signal.wait(0.005)
        return job.continue_with("queues.again", job.input - 1) if job.input else None

    with statements_of_others() as statements:
        chain = again.enqueue(100)
        start_worker(poll_seconds=0.2)
        until_completed(chain, 30)
        claims = statements.count("SET status = 'running'")
        reads = statements.count("slot_limit")
    assert claims >= 100
    assert reads < 10
