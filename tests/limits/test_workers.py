"""Running workers keep limits together, use places that become free at once, and take turns."""

import threading
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains, limits
from django_jobchains.models import Job, RateState
from django_jobchains.processors import Batch, Concurrency, Rate, RunningJob
from django_jobchains.store.queues import Override
from django_jobchains.testing import clock, run_due_jobs
from django_jobchains.worker import caretakers
from django_jobchains.worker.caretakers import Unblocker
from tests.support.waiting import stays, until
from tests.support.workers import completed

OBSERVATION_SECONDS = 0.3


class Held:
    """A handler that waits until the gate is opened, and counts the attempts that run at once for each input."""

    def __init__(self, opened):
        self._opened = opened
        self._lock = threading.Lock()
        self.running = Counter()
        self.peaks = Counter()

    def __call__(self, job):
        with self._lock:
            self.running[job.input] += 1
            self.peaks[job.input] = max(self.peaks[job.input], self.running[job.input])
        try:
            assert self._opened.wait(30), "The gate was not opened."
        finally:
            with self._lock:
                self.running[job.input] -= 1

    def until(self, **counts):
        until(lambda: +self.running == Counter(counts), what=lambda: self.running)
        assert stays(lambda: +self.running == Counter(counts), OBSERVATION_SECONDS), self.running


@pytest.fixture
def held(gate):
    return Held(gate)


def itself(value):
    return value


def length(value):
    return len(value)


def test_workers_keep_a_limit_together(processors, held, gate, start_worker):
    sync = processors.register("limits.sync", concurrency=Concurrency(2, key=itself))(held)
    for _ in range(2):
        start_worker(slots=4)
    chains.enqueue_many([sync.item(key) for key in "aaaaab"])
    held.until(a=2, b=1)
    gate.set()
    until(lambda: completed() == 6)
    assert held.peaks == Counter(a=2, b=1)


def test_a_saturated_type_delays_no_other(processors, held, start_worker, gate):
    sync = processors.register("limits.sync", concurrency=Concurrency(1, key=itself))(held)
    quick = processors.register("limits.quick")(lambda job: None)
    chains.enqueue_many([sync.item("a") for _ in range(5)])
    start_worker(slots=3)
    held.until(a=1)
    quick.enqueue()
    until(lambda: completed(type_name="limits.quick") == 1)
    gate.set()
    until(lambda: completed() == 6)


@pytest.mark.parametrize("group", [None, "gateway"])
def test_a_free_place_is_used_by_other_workers_at_once(processors, gate, start_worker, make_worker, group):
    """Not after the poll interval, which is a minute."""
    limit = Concurrency(1, group=group)
    first = processors.register("limits.first", concurrency=limit)(lambda job: gate.wait(30))
    second = processors.register("limits.second", concurrency=limit)(lambda job: None)
    start_worker(slots=1, types=["limits.first"])
    first.enqueue()
    until(lambda: Job.objects.filter(status="running").exists())
    start_worker(slots=1, types=["limits.second"] if group else ["limits.*"])
    target = second if group else first
    chain = target.enqueue()
    assert stays(lambda: chain.refresh().status == "pending", OBSERVATION_SECONDS)
    gate.set()
    until(lambda: chain.refresh().status == "completed", 15)


def complete(chain):
    with chains.current_job(chain) as current:
        current.finish()


@pytest.mark.parametrize("take", [complete, chains.delete])
def test_workers_are_notified_of_the_place_of_a_job_that_is_taken_from_its_handler(processors, sent, take):
    limit = Concurrency(1, group="gateway")
    first = processors.register("limits.first", concurrency=limit)(lambda job: None)
    processors.register("limits.second", concurrency=limit)(lambda job: None)
    held = first.enqueue()
    Job.objects.update(status="running")
    assert not any("limits.second" in subjects for _, subjects in sent)
    take(held)
    assert any("limits.second" in subjects for _, subjects in sent)


def test_chains_of_on_failure_get_their_keys_at_once(processors, make_worker):
    fails = processors.register("limits.fails", on_failure="limits.alert", max_attempts=1)(lambda job: 1 / 0)
    processors.register("limits.alert", concurrency=Concurrency(1, key="type_name"))(lambda job: None)
    fails.enqueue()
    make_worker().run_until_idle(20)
    alert = Job.objects.get(type_name="limits.alert")
    assert (alert.status, alert.concurrency_key) == ("completed", "limits.alert␟limits.fails")


def test_a_failure_is_recorded_also_if_its_chain_has_no_valid_key(processors, make_worker):
    fails = processors.register("limits.fails", on_failure="limits.alert", max_attempts=1)(lambda job: 1 / 0)
    processors.register("limits.alert", concurrency=Concurrency(1, key="nothing"))(lambda job: None)
    fails.enqueue()
    make_worker().run_until_idle(20)
    alert = Job.objects.get(type_name="limits.alert")
    assert (alert.status, alert.concurrency_key) == ("completed", "limits.alert")


def test_an_error_in_the_project_delays_only_the_chain_whose_keys_it_concerns(processors, make_worker, caplog):
    def upgraded(failed):
        if not is_available:
            raise ConnectionError("no route to the tenants")
        return 1

    is_available = []
    fails = processors.register("limits.fails", on_failure="limits.alert", max_attempts=1)(lambda job: 1 / 0)
    limit = Concurrency(1, key=itself)
    processors.register("limits.alert", input=int, upgrade_input=upgraded, concurrency=limit)(lambda job: None)
    other = processors.register("limits.other")(lambda job: None)
    chains.enqueue_many([fails.item(), other.item()])
    worker = make_worker()
    worker.run_until_idle(20)
    sweep = Unblocker(worker.components.context, SimpleNamespace(is_first=True)).step
    sweep()
    found = dict(Job.objects.values_list("type_name", "status"))
    assert found == {"limits.fails": "failed", "limits.other": "completed", "limits.alert": "pending"}
    assert "ConnectionError: no route to the tenants" in caplog.text
    is_available.append(True)
    sweep()
    make_worker().run_until_idle(20)
    assert Job.objects.get(type_name="limits.alert").status == "completed"


def test_a_failed_attempt_frees_its_place(processors, make_worker):
    @processors.register("limits.sync", concurrency=Concurrency(1), max_attempts=1)
    def sync(job: RunningJob[int]) -> None:
        if job.input == 0:
            raise ValueError

    chains.enqueue_many([sync.item(number) for number in range(3)])
    make_worker(slots=2).run_until_idle(20)
    assert Counter(Job.objects.values_list("status", flat=True)) == {"failed": 1, "completed": 2}


def test_claims_go_round_the_keys(processors, make_worker):
    """One key has very many jobs, and others have few."""
    order = []
    sync = processors.register("limits.sync", fair=itself)(lambda job: order.append(job.input))
    chains.enqueue_many([sync.item(0) for _ in range(600)])
    chains.enqueue_many([sync.item(key) for key in range(1, 20) for _ in range(5)])
    make_worker(slots=2).run_until_idle(60)
    assert len(order) == 695
    last = max(number for number, key in enumerate(order) if key)
    assert last < 250


def test_batches_keep_a_limit(processors, make_worker):
    sizes = []

    @processors.register("limits.batch", concurrency=Concurrency(3), batch_limit=10)
    def sync(batch: Batch[int]) -> None:
        sizes.append(len(batch))

    chains.enqueue_many([sync.item(number) for number in range(7)])
    make_worker(slots=4).run_until_idle(20)
    assert sum(sizes) == 7
    assert max(sizes) <= 3


def test_jobs_whose_keys_fail_do_not_keep_the_others_from_getting_theirs(processors, make_worker, monkeypatch, caplog):
    def upgraded(given):
        raise ConnectionError("no route to the tenants")

    limit = Concurrency(1, key=itself)
    fails = processors.register("limits.fails", input=int, upgrade_input=upgraded, concurrency=limit)(lambda job: None)
    sync = processors.register("limits.sync", concurrency=limit)(lambda job: None)
    other = processors.register("limits.other")(lambda job: None)
    blocker, *_ = chains.enqueue_many([other.item(), *(fails.item(1) for _ in range(4)), sync.item("a")])
    chains.enqueue_many([other.item(blockers=[blocker]) for _ in range(7)])
    Job.objects.update(limit_key=None, concurrency_key=None)
    Job.objects.filter(type_name="limits.fails").update(input="one")
    monkeypatch.setattr(caretakers, "KEYS_LIMIT", 2)
    monkeypatch.setattr(caretakers, "SWEEP_LIMIT", 2)
    sweep = Unblocker(make_worker().components.context, SimpleNamespace(is_first=True)).step
    # There are three pages of jobs without keys, each of which is read once, and four of blocked jobs.
    assert [sweep() for _ in range(4)] == [True, True, True, False]
    limited = Job.objects.exclude(type_name="limits.other")
    assert set(limited.values_list("type_name", "concurrency_key")) == {
        ("limits.fails", None),
        ("limits.sync", "limits.sync␟a"),
    }
    messages = [record.getMessage() for record in caplog.records if "keys of the limits" in record.msg]
    assert [message.split(", first")[0] for message in messages] == [
        "The keys of the limits of 2 jobs of limits.fails failed"
    ] * 2


def test_jobs_from_before_a_limit_was_declared_run_within_it(processors, make_worker):
    sync = processors.register("limits.sync", concurrency=Concurrency(1, key=length))(lambda job: None)
    chains.enqueue_many([sync.item(key) for key in ("a", "bb", "bc")])
    before = dict(Job.objects.values_list("id", "concurrency_key"))
    Job.objects.update(limit_key=None, concurrency_key=None)
    worker = make_worker()
    Unblocker(worker.components.context, SimpleNamespace(is_first=True)).step()
    assert dict(Job.objects.values_list("id", "concurrency_key")) == before
    worker.run_until_idle(20)
    assert completed() == 3


def test_jobs_without_a_valid_key_share_one(processors, make_worker):
    """They were enqueued before the limit was declared, so that nobody saw the error."""
    sync = processors.register("limits.sync", concurrency=Concurrency(1, key=length))(lambda job: None)
    sync.enqueue("a")
    Job.objects.update(limit_key=None, concurrency_key=None, input=5)
    worker = make_worker()
    Unblocker(worker.components.context, SimpleNamespace(is_first=True)).step()
    assert Job.objects.get().concurrency_key == "limits.sync"


def test_limited_jobs_run_in_tests(processors):
    sync = processors.register("limits.sync", concurrency=Concurrency(1))(lambda job: None)
    chains.enqueue_many([sync.item(number) for number in range(3)])
    run_due_jobs()
    assert completed() == 3


def test_rates_hold_in_tests(processors):
    sync = processors.register("limits.sync", rate=Rate(2, per=60, burst=2))(lambda job: None)
    other = processors.register("limits.other")(lambda job: None)
    chains.enqueue_many([sync.item(number) for number in range(5)])
    other.enqueue()
    with clock() as time:
        assert [outcome.job.type_name for outcome in run_due_jobs()] == ["limits.other", "limits.sync", "limits.sync"]
        assert run_due_jobs() == []
        time.advance(30)
        assert len(run_due_jobs()) == 1
        time.advance(3_600)
        assert len(run_due_jobs()) == 2


def test_batches_keep_limits_in_tests(processors):
    sizes = []

    @processors.register("limits.batch", rate=Rate(3, per=60, burst=3), concurrency=Concurrency(2), batch_limit=10)
    def sync(batch: Batch[int]) -> None:
        sizes.append(len(batch))

    chains.enqueue_many([sync.item(number) for number in range(7)])
    run_due_jobs()
    assert sizes == [2, 1]


def test_jobs_start_again_after_the_clock_was_ahead(processors, settings, start_worker):
    settings.JOBCHAINS = {"SWEEP_SECONDS": 0.1}
    sync = processors.register("limits.sync", rate=Rate(5, per=1))(lambda job: None)
    start_worker(poll_seconds=0.1)
    sync.enqueue("before")
    until(lambda: completed() == 1)
    RateState.objects.update(started_at=F("started_at") + 3_600_000_000, full_at=F("full_at") + 3_600_000_000)
    sync.enqueue("after")
    until(lambda: completed() == 2)


def test_workers_start_jobs_at_their_rate(processors, start_worker):
    """The second worker has waited for the next start, not for the poll interval, which is a minute."""
    sync = processors.register("limits.sync", rate=Rate(5, per=1, key=itself))(lambda job: None)
    for _ in range(2):
        start_worker(slots=4)
    chains.enqueue_many([sync.item("a") for _ in range(6)])
    sync.enqueue("b")
    until(lambda: completed() == 7, 20)
    times = sorted(Job.objects.filter(rate_key="limits.sync␟a").values_list("last_attempt_at", flat=True))
    assert all(second - first >= timedelta(seconds=0.2) for first, second in pairwise(times))


def test_waiting_jobs_that_a_stopping_worker_hands_back_are_not_starts(processors, make_worker, gate):
    held = processors.register("limits.held", rate=Rate(1, per=3_600, burst=3))(lambda job: gate.wait(30))
    worker = make_worker(slots=1)
    chains.enqueue_many([held.item(number) for number in range(3)])
    [lane] = [lane for lane in worker.components.claim_loop._ordered if getattr(lane, "rotation", None)]
    jobs = worker.components.context.store.limits.claim("other", 3, lane.limited({}), lane.rotation)
    worker.components.claim_loop.close()
    worker.components.claim_loop._start(lane, jobs, 0.0)
    assert Job.objects.filter(status="pending").count() == 3
    assert len(worker.components.context.store.limits.claim("other", 3, lane.limited({}), lane.rotation)) == 3


def test_full_buckets_are_forgotten(processors, make_worker):
    processors.register("limits.sync", rate=Rate(1, per=60))(lambda job: None)
    for key, full_at in (("full", 1), ("not full", 2**60)):
        times = {"full_at": full_at, "started_at": 0, "interval_microseconds": 1, "refundable_since": 0, "slack": 0}
        RateState.objects.create(key=key, **times)
    Unblocker(make_worker().components.context, SimpleNamespace(is_first=True)).step()
    assert RateState.objects.get().key == "not full"


def test_a_worker_without_limited_types_sends_no_statement_about_limits(processors, make_worker, store, monkeypatch):
    quick = processors.register("limits.quick")(lambda job: None)
    worker = make_worker()
    for name in ("claim", "next_due", "without_keys"):
        monkeypatch.setattr(store.limits, name, None)
    monkeypatch.setattr(store.rates, "forget", None)
    with CaptureQueriesContext(connection) as created:
        chains.enqueue_many([quick.item() for _ in range(3)])
        quick.enqueue()
    Unblocker(worker.components.context, SimpleNamespace(is_first=True)).step()
    worker.run_until_idle(20)
    assert completed() == 4
    assert "limit_key" not in str(created.captured_queries)


def test_an_override_changes_what_running_workers_start(processors, held, gate, start_worker):
    sync = processors.register("limits.sync", concurrency=Concurrency(2))(held)
    chains.enqueue_many([sync.item("a") for _ in range(8)])
    worker = start_worker(slots=6)
    held.until(a=2)
    limits.set("limits.sync", concurrency=4)
    held.until(a=4)
    limits.reset("limits.sync")
    held.until(a=4)  # running jobs are not stopped
    limits.set("limits.sync", concurrency=0)
    until(lambda: worker.components.context.queues.overrides == {"limits.sync": Override(0)})
    gate.set()
    until(lambda: completed() == 4)
    assert stays(lambda: completed() == 4, OBSERVATION_SECONDS)
    limits.reset("limits.sync")
    until(lambda: completed() == 8)


def test_a_worker_reads_overrides_with_the_rules_of_queues(processors, make_worker, store, monkeypatch):
    """A fleet without limits pays no statement for them, and without hints a worker reads them before it claims."""
    sync = processors.register("limits.sync", concurrency=Concurrency(2))(lambda job: None)
    store.queues.override("limits.sync", Override(0))
    sync.enqueue()
    worker = make_worker()
    with CaptureQueriesContext(connection) as captured:
        worker.components.context.queues.claims_for(1)
    assert len(captured) == 1
    worker.run_until_idle(20)
    assert completed() == 0
