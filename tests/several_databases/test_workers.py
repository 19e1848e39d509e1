"""Workers, waiters and wake-ups of two databases in one process, with the same job ids on both."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from django.db import connections

from django_jobchains import chains
from django_jobchains.db.ids import new_id
from django_jobchains.models import Chain, Job
from django_jobchains.notifications import EVERY, chain_finished, get_notifier, job_scheduled, ownership_lost, waiting
from django_jobchains.processors import JobType
from django_jobchains.store.chains import Chains
from tests.shop.models import Effect
from tests.support.waiting import stays, until

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

IN_PROCESS = {"BACKEND": "django_jobchains.notifications.in_process.InProcessNotifier"}


@pytest.fixture(params=["own", "in_process"])
def _notifiers(request, other, settings):
    """The default notifiers of the vendors, or the in-process notifier for both databases."""
    if request.param == "in_process":
        settings.JOBCHAINS = {"NOTIFIER": IN_PROCESS, "DATABASES": {other: {"NOTIFIER": IN_PROCESS}}}


@pytest.fixture
def _polls_are_rare(monkeypatch):
    monkeypatch.setattr(waiting, "POLL_SECONDS", 1_000)


@pytest.mark.usefixtures("_notifiers", "_polls_are_rare")
def test_worker_runs_jobs_and_wakes_waiters_of_its_database(other, start_worker, processors):
    who = processors.register("work.who")(lambda job: "done")
    workers = {using: start_worker(using=using, name=using) for using in ("default", other)}
    for _ in range(3):
        id_ = new_id()
        started = {using: who.enqueue(id=id_, using=using) for using in workers}
        for using, chain in started.items():
            assert chains.wait(chain.id, 30, using=using) == "done"
            assert Job.objects.using(using).get(pk=id_).completed_by == workers[using].id
    assert {Chain.objects.using(using).count() for using in workers} == {3}


@pytest.mark.usefixtures("_notifiers", "_polls_are_rare")
def test_hint_of_another_database_does_not_wake_a_waiter(other, monkeypatch):
    type_ = JobType("work.outside")
    id_ = new_id()
    queried_at = []
    original = Chains.ends

    def ends(store, chain_ids):
        if store.db.using == "default":
            queried_at.append(time.monotonic())
        return original(store, chain_ids)

    monkeypatch.setattr(Chains, "ends", ends)
    for using in ("default", other):
        type_.enqueue(id=id_, using=using)
    result = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(wait, id_, result)
        until(lambda: queried_at and get_notifier("default")._subscribers.is_alive)
        # The listener's first hint is followed by another query.
        until(lambda: stays(lambda: is_idle_since(queried_at[-1]), 0.1))
        before = len(queried_at)
        chains.complete(id_, "there", using=other)
        assert chains.wait(id_, 30, using=other) == "there"
        assert stays(lambda: len(queried_at) == before, 0.3)
        assert result == []
        chains.complete(id_, "here")
        until(lambda: result == ["here"])


def wait(id_, result):
    try:
        result.append(chains.wait(id_, 60))
    finally:
        connections.close_all()


def is_idle_since(queried_at):
    """Return whether the query of this time has ended, and only a hint can cause another one."""
    watcher = waiting.get_watcher("default")
    return watcher._used_at >= queried_at and watcher._query_at > time.monotonic() + 60


def test_gauges_are_about_the_databases_of_the_workers(other, recorded, start_worker, processors):
    def scheduled():
        found = recorded.values("jobchains.queue.jobs")
        return {
            attributes["jobchains.database.alias"]: count
            for attributes, count in found
            if attributes["jobchains.job.status"] == "scheduled"
        }

    later = processors.register("work.later")(lambda job: None)
    for using, count in (("default", 1), (other, 3)):
        chains.enqueue_many([later.item(delay=600) for _ in range(count)], using=using)
    start_worker(using=other)
    until(lambda: scheduled() == {other: 3})
    start_worker()
    until(lambda: scheduled() == {"default": 1, other: 3})


def test_cancellation_applies_to_one_database(other, start_worker, processors):
    is_released = threading.Event()

    @processors.register("work.long")
    def long(job):
        Effect.objects.create(job_id=job.id, label="running")
        while not is_released.is_set() and not job.signal.wait(0.01):
            pass
        job.signal.raise_if_aborted()

    workers = [start_worker(using=using) for using in ("default", other)]
    id_ = new_id()
    for using in ("default", other):
        long.enqueue(id=id_, using=using)
    until(lambda: Effect.objects.count() == 2)
    chains.cancel(id_, using=other)
    until(lambda: Chain.objects.using(other).get().status == "cancelled")
    assert Job.objects.get().cancel_requested_at is None
    is_released.set()
    until(lambda: Chain.objects.get().status == "completed")
    assert len(workers) == 2


def test_listener_receives_only_hints_of_its_database(other):
    """Hints arrive in order, so the last one proves that no earlier one is still on its way."""
    received = {"default": [], other: []}
    with ExitStack() as stack:
        for using, hints in received.items():
            stack.callback(get_notifier(using).listen(hints.append).close)
        until(lambda: all(len(hints) >= 3 for hints in received.values()))
        for using in received:
            for hint in (job_scheduled(f"of.{using}"), chain_finished(new_id()), ownership_lost(new_id())):
                get_notifier(using).publish([hint])
        for using, hints in received.items():
            if connections[using].vendor == "postgresql":
                until(lambda using=using, hints=hints: job_scheduled(f"of.{using}") in hints)
            for hint in hints:
                assert hint.subject == EVERY or hint.kind != "job_scheduled" or hint.subject == f"of.{using}"
