"""The task of a worker that fires schedules: when it queries, and what wakes it."""

import heapq
import random
from collections import Counter
from math import inf

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains, schedules
from django_jobchains.models import Job, Schedule
from django_jobchains.notifications import EVERY, Hint
from django_jobchains.processors import Processors, Registry
from django_jobchains.schedules.firing import CONFLICT_SECONDS
from django_jobchains.store import get_store
from django_jobchains.store.schedules import Schedules
from django_jobchains.testing import fire_schedules
from django_jobchains.worker import Worker, scheduler
from django_jobchains.worker.options import WorkerContext, WorkerOptions
from django_jobchains.worker.scheduler import Scheduler
from tests.support.connections import Actor, committing, stopped_before, waiting
from tests.support.jobs import claim, finished
from tests.support.statements import statements_of_others
from tests.support.waiting import until
from tests.support.workers import completed, context_for

ALL = Hint("job_scheduled", EVERY)


class Peers:
    """A heartbeat that has found these workers, in the order of their starts."""

    def __init__(self, *ids, live=()):
        self.ids = [*ids]
        self.live_schedules = frozenset(live)
        self.schedules = None

    def peers_of_schedules(self):
        return self.ids


@pytest.fixture
def make(registry, processors, store, monkeypatch):
    monkeypatch.setattr(scheduler.random, "uniform", lambda least, most: most)

    def make(*peers):
        found = Peers(*peers)
        return Scheduler(context_for(store, registry=registry, poll_seconds=60.0), found), found

    return make


@pytest.fixture
def queries(monkeypatch):
    """The calls of the store, by their names."""
    calls = []
    for name in ("store", "seconds_to_next", "due", "fired"):
        method = getattr(Schedules, name)

        def call(part, *args, _name=name, _method=method, **kwargs):
            calls.append(_name)
            return _method(part, *args, **kwargs)

        monkeypatch.setattr(Schedules, name, call)
    return calls


@pytest.mark.django_db
class TestSteps:
    def test_without_schedules_it_makes_one_query_at_each_poll(self, make, queries):
        task, _ = make()
        for _ in range(2):
            assert task.step() is True
            assert task.rest_seconds == 60
        assert queries == ["seconds_to_next"] * 2

    def test_it_sleeps_until_the_next_tick_and_fires(self, make, processors, report, time, queries):
        processors.schedule("often", report, every=7)
        time.set("2026-06-01 10:00:00")
        task, _ = make()
        task.step()
        assert (task.rest_seconds, queries) == (pytest.approx(7), ["store", "seconds_to_next"])
        time.advance(seconds=7)
        task._due_at = -inf
        queries.clear()
        task.step()
        assert (task.rest_seconds, queries) == (pytest.approx(7), ["due", "fired", "seconds_to_next"])
        assert Job.objects.count() == 1

    def test_what_is_due_when_it_starts_is_fired_at_once(self, make, processors, report, time):
        processors.schedule("often", report, every=7)
        fire_schedules()
        time.advance(seconds=8)
        task, _ = make()
        task.step()
        assert task.rest_seconds == 0
        assert Job.objects.count() == 1

    def test_a_tick_that_another_worker_is_firing_is_no_busy_loop(self, make, processors, report, time, monkeypatch):
        processors.schedule("often", report, every=7)
        fire_schedules()
        time.advance(seconds=8)
        monkeypatch.setattr(Schedules, "due", lambda part, *args: [])
        task, _ = make()
        task.step()
        assert task.rest_seconds == scheduler.LOCKED_WAIT_SECONDS

    @pytest.mark.parametrize(
        ("peers", "tick", "rest"),
        [
            ([], 7, 7),
            (["worker-1", "worker-2"], 7, 7),
            (["other"], 7, 7),  # its own row is missing
            (["worker-2", "worker-1"], 7, 7.5),
            ([*(f"w{number}" for number in range(19)), "worker-1"], 7, 20),
            ([*(f"w{number}" for number in range(99)), "worker-1"], 7, 30),
            (["worker-2", "worker-1"], 3600, 60),
        ],
    )
    def test_the_first_worker_fires_and_others_look_later(self, make, processors, report, time, peers, tick, rest):
        processors.schedule("often", report, every=tick)
        time.set("2026-06-01 10:00:00")
        task, _ = make(*peers)
        task.step()
        assert task.rest_seconds == pytest.approx(rest)

    def test_another_worker_than_the_first_asks_before_it_fires(self, make, processors, report, time, queries):
        processors.schedule("often", report, every=7)
        time.set("2026-06-01 10:00:00")
        task, _ = make("worker-2", "worker-1")
        task.step()
        queries.clear()
        task._due_at = -inf
        task.step()
        assert queries == ["seconds_to_next"]
        time.advance(seconds=8)
        task.step()
        assert Job.objects.count() == 1

    def test_a_schedule_that_cannot_fire_here_is_left_out_for_a_while(self, make, report, time, queries):
        schedules.create("mine", report, every=7)
        Schedule.objects.update(type_name="schedules.unknown")
        time.advance(seconds=8)
        task, _ = make()
        task.step()
        task.step()
        assert task.rest_seconds == pytest.approx(60, abs=5)
        Schedule.objects.update(type_name=report.name)
        task.step()
        assert Job.objects.count() == 0
        task.on_hint(ALL)
        task.step()
        assert Job.objects.count() == 1

    def test_hints_cause_one_query_in_a_second(self, make, monkeypatch):
        now = [100.0]
        monkeypatch.setattr(scheduler.time, "monotonic", lambda: now[0])
        task, _ = make()
        assert task.on_hint(Hint("job_scheduled", "shop.charge")) is None
        assert task.on_hint(Hint("chain_finished", EVERY)) is None
        assert task.on_hint(ALL) == 0
        task.step()
        assert task.rest_seconds == 60
        now[0] += 0.25
        assert task.on_hint(ALL) == 0.75

    def test_a_hint_during_a_step_is_not_lost(self, make, monkeypatch):
        task, _ = make()
        seconds_to_next = Schedules.seconds_to_next

        def hint_and_call(part, *args):
            task.on_hint(ALL)
            return seconds_to_next(part, *args)

        monkeypatch.setattr(Schedules, "seconds_to_next", hint_and_call)
        task.step()
        assert task.rest_seconds == scheduler.HINT_SECONDS

    def test_schedules_are_stored_at_the_start_and_when_another_version_is_gone(
        self, make, processors, report, queries
    ):
        processors.schedule("often", report, every=3600)
        task, peers = make("worker-1")
        own = task.declared.digest
        assert peers.schedules == own
        for live, stored in [([], 1), ([own], 1), ([own, "other"], 1), ([own, "other"], 1), ([own], 2), ([own], 2)]:
            peers.live_schedules = frozenset(live)
            task.step()
            assert queries.count("store") == stored

    def test_other_workers_are_asked_to_help_with_many(self, make, processors, report, time, monkeypatch):
        for name in ("BATCH_SIZE", "ONE_WRITER_BATCH_SIZE"):
            monkeypatch.setattr(f"django_jobchains.schedules.firing.{name}", 2)
        sent = []
        monkeypatch.setattr(scheduler, "notify_workers", sent.append)
        for name in "abcde":
            processors.schedule(name, report, every=7)
        task, _ = make()
        task.step()
        time.advance(seconds=8)
        task.fire_all()
        assert Job.objects.count() == 5
        assert sent == ["default"]

    def test_an_invalid_schedule_is_an_error_at_the_start(self, make, processors, report):
        processors.schedule("often", report, every=0)
        with pytest.raises(ImproperlyConfigured, match=r"Worker\(\): Schedule 'often': every=0"):
            make()


@pytest.mark.django_db
@pytest.mark.parametrize("every", [3600, 1])
def test_the_other_workers_of_a_fleet_make_one_query_in_a_second(
    registry, processors, report, store, time, monkeypatch, every
):
    """While nothing is due, and with a tick in each second, which the first worker fires.

    Each of twenty workers takes its steps when it has asked for them, in the time of the test.
    """
    ids = [f"worker-{number}" for number in range(20)]
    processors.schedule("often", report, every=every)
    time.set("2026-06-01 10:00:00")
    now = [1000.0]
    monkeypatch.setattr(scheduler.time, "monotonic", lambda: now[0])
    fleet = [
        Scheduler(WorkerContext(WorkerOptions(name, store, registry=registry, poll_seconds=60.0)), Peers(*ids))
        for name in ids
    ]
    steps = [(now[0] + random.random(), number) for number in range(len(fleet))]
    statements = Counter()
    while steps[0][0] < 1120:
        now[0], number = heapq.heappop(steps)
        store.db.ahead_seconds = now[0] - 1000
        with CaptureQueriesContext(connection) as captured:
            fleet[number].step()
        if now[0] > 1001:  # All have stored the schedules and found each other.
            statements[number] += len(captured)
        heapq.heappush(steps, (now[0] + max(fleet[number].rest_seconds, 0.01), number))
    assert Job.objects.count() == (119 if every == 1 else 0)
    first = statements.pop(0)
    assert sum(statements.values()) <= 120
    assert first <= (120 * 10 if every == 1 else 5)


@committing
@pytest.mark.postgresql
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_two_workers_fire_a_tick_once(processors, report, store, level):
    """The second one fires while the first one's transaction is open, and after it."""
    processors.schedule("often", report, every=7)
    fire_schedules()
    Schedule.objects.update(next_tick_at=store.stats.time_ago(3))
    first = Actor(lambda store: fire_schedules(), holds=True, level=level).start().until_stopped()
    assert Actor(lambda store: fire_schedules(), level=level).start().result() == []
    assert len(first.result()) == 1
    assert Actor(lambda store: fire_schedules(), level=level).start().result() == []
    assert Job.objects.count() == 1


@committing
@pytest.mark.postgresql
def test_a_locked_chain_delays_only_the_schedule_that_waits_for_it(processors, report, store):
    """A handler may hold the lock of its job for minutes."""
    for name, overlap in (("waits", "queue"), ("flows", "allow")):
        processors.schedule(name, report, every=7, overlap=overlap)
    fire_schedules()
    Schedule.objects.update(next_tick_at=store.stats.time_ago(3))
    fire_schedules()
    job = Job.objects.get(schedule_name="waits")
    Schedule.objects.update(next_tick_at=store.stats.time_ago(1))
    holder = Actor(lambda store: store.last_jobs.lock_jobs([job.id]), holds=True).start().until_stopped()
    with store.db.waits_at_most(0.02):
        [chain] = Actor(lambda _: _fire_impatiently()).start().result()
    assert chain.schedule_name == "flows"
    assert schedules.get("waits").last_error is None
    holder.result()
    assert [chain.schedule_name for chain in fire_schedules()] == ["waits"]


@committing
@pytest.mark.postgresql
def test_a_chain_that_is_deleted_while_its_schedule_fires_delays_it_briefly(processors, report, version, store):
    processors.schedule("waits", report, every=7, overlap="queue")
    workers = version(processors)
    Schedule.objects.update(next_tick_at=store.stats.time_ago(3))
    [previous] = workers.fire().chains
    Schedule.objects.update(next_tick_at=store.stats.time_ago(1))
    firing = stopped_before(2, lambda _: workers.fire())  # after it has read the previous chain
    chains.delete(previous.id)
    assert firing.result().failed == {"waits": CONFLICT_SECONDS}
    assert schedules.get("waits").last_error is None
    assert [chain.status for chain in workers.fire().chains] == ["pending"]


@committing
@pytest.mark.postgresql
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_a_chain_that_ends_while_another_one_is_queued_behind_it_frees_it(processors, report, version, store, level):
    def finish(store):
        with store.db.waits_at_most(10):  # as in a worker, so that it does not skip a locked job
            return store.attempts.finish([finished(job)])

    processors.schedule("waits", report, every=7, overlap="queue")
    workers = version(processors)
    Schedule.objects.update(next_tick_at=store.stats.time_ago(3))
    workers.fire()
    [job] = claim(store, types=[report.name])
    Schedule.objects.update(next_tick_at=store.stats.time_ago(1))
    firing = stopped_before(5, lambda _: workers.fire(), level)  # after it has locked the previous chain
    ending = waiting(finish, level)
    [chain] = firing.result().chains
    assert ending.result() == {job.key}
    assert chain.refresh().status == "pending"


def _fire_impatiently():
    with get_store().db.waits_at_most(0.02):
        return fire_schedules()


class TestWorkers:
    @pytest.fixture
    def registry(self, transactional_db):
        return Registry()

    @pytest.fixture
    def processors(self, registry):
        part = Processors()
        registry.add(part)
        return part

    @pytest.fixture
    def report(self, processors):
        return processors.register("schedules.report")(lambda job: None)

    def test_a_worker_fires_and_runs(self, processors, report, start_worker, registry):
        processors.schedule("often", report, every=1)
        worker = start_worker()
        until(lambda: completed(schedule_name="often") >= 2)
        assert "schedules" in worker.components.threads
        ticks = list(Job.objects.filter(schedule_name="often").values_list("scheduled_for", flat=True))
        assert len(ticks) == len(set(ticks))

    def test_a_worker_whose_code_declares_none_has_no_thread_for_them(self, report, start_worker):
        worker = start_worker()
        assert "schedules" not in worker.components.threads
        until(lambda: worker.components.heartbeat.last_success_at)
        row = Schedule.objects.create(
            name="mine", type_name=report.name, every_seconds=3600, timezone="UTC", overlap="allow", source="admin",
            on_missed="run_once", max_catch_up=1, created_at=get_store().stats.time_ago(0), input=None,
            anchor_at=get_store().stats.time_ago(5000), next_tick_at=get_store().stats.time_ago(1),
        )  # fmt: skip
        schedules.resume(row.name)  # which notifies workers
        until(lambda: completed(schedule_name="mine") == 1)

    def test_run_until_idle_fires_what_is_due(self, processors, report, registry):
        processors.schedule("often", report, every=3600)
        Worker(registry=registry).run_until_idle()
        assert Job.objects.count() == 0
        Schedule.objects.update(next_tick_at=get_store().stats.time_ago(1))
        Worker(registry=registry).run_until_idle()
        assert completed() == 1

    def test_a_worker_for_maintenance_only_fires_too(self, processors, report, start_worker):
        processors.schedule("often", report, every=1)
        start_worker(maintenance_only=True, slots=None)
        until(lambda: Job.objects.filter(schedule_name="often").exists())

    def test_an_idle_worker_without_schedules_makes_one_query_about_them(self, report, start_worker):
        with statements_of_others() as statements:
            worker = start_worker()
            until(lambda: worker.components.scheduler._queried_at > 0)
        assert statements.count("django_jobchains_schedule") <= 1

    @pytest.mark.parametrize("declares", [False, True])
    def test_jobs_cost_no_statement_about_schedules(self, processors, report, registry, declares):
        if declares:
            processors.schedule("often", report, every=3600)
        for _ in range(100):
            report.enqueue()
        with statements_of_others() as statements:
            Worker(registry=registry).run_until_idle()
        assert completed() == 100
        assert statements.count("django_jobchains_schedule") <= 4  # when the worker starts

    def test_the_database_may_fail(self, processors, report, start_worker, monkeypatch):
        processors.schedule("often", report, every=1)
        errors = [OperationalError("gone"), OperationalError("gone")]
        due = Schedules.due

        def fail(part, *args, **kwargs):
            if errors:
                raise errors.pop()
            return due(part, *args, **kwargs)

        monkeypatch.setattr(Schedules, "due", fail)
        start_worker()
        until(lambda: completed(schedule_name="often"))
