"""Fifty idle workers and a few jobs: only as many workers query as the jobs need, and no job waits for the poll."""

import time
from functools import partial
from types import SimpleNamespace

import pytest

from django_jobchains import chains
from django_jobchains.notifications import EVERY, get_notifier
from django_jobchains.notifications.in_process import InProcessNotifier
from django_jobchains.store.workers import Beat
from django_jobchains.worker import Worker
from django_jobchains.worker.wake_order import LATE_FACTOR, LATE_SECONDS
from tests.support.statements import statements_of_others
from tests.support.waiting import stays, until
from tests.support.worker_rows import facts_of

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

WORKERS = 50
#: The statements of a worker that queries: the rules of queues, up to two claims, the next due time.
OF_A_QUERY = 4
#: How long a test checks that nothing more happens. Five workers query late in this time.
SECONDS = LATE_SECONDS * LATE_FACTOR**4


class WithoutBudgets(InProcessNotifier):
    def take(self, hint, limit, group):
        return None


NOTIFIERS = {
    "postgres": "django_jobchains.notifications.postgres.PostgresNotifier",
    "without budgets": f"{__name__}.WithoutBudgets",
    "with budgets": "django_jobchains.notifications.in_process.InProcessNotifier",
}
only_without_budgets = pytest.mark.parametrize("kind", ["without budgets"], indirect=True)
only_with_budgets = pytest.mark.parametrize("kind", ["with budgets"], indirect=True)


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.postgresql] * (name == "postgres")) for name in NOTIFIERS]
)
def kind(request, settings):
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": NOTIFIERS[request.param]}}
    return request.param


@pytest.fixture
def hold(processors, gate):
    """A type whose jobs wait until the end of the test."""
    return processors.register("idle_workers.hold")(lambda job: gate.wait(30))


@pytest.fixture
def idle(kind, hold, registry, gate):
    """Workers with one slot each, of which only the claim loops and slots run, and their statements from now on."""
    workers = [Worker(registry=registry, slots=1, poll_seconds=60) for _ in range(WORKERS)]
    present = [facts_of(beat_of(worker)) for worker in workers]
    resynced, listeners = set(), []
    with statements_of_others() as statements:
        for worker in workers:
            worker.components.wake_order.update(worker.id, present)
            worker.components.slots.start()
            worker.components.threads["claim-loop"].start()
            on_hint = partial(pass_on, worker, resynced)
            listeners.append(get_notifier("default").listen(on_hint, {"job_scheduled"}))
            until(lambda: resynced, 20)  # so that the listener is connected, and resyncs each of the others at once
        until(lambda: all(worker.components.claim_loop.idle.is_set() for worker in workers), 40)
        until(lambda: len(resynced) == WORKERS)
        until_at_rest(workers)
        statements.texts.clear()
        claimed = lambda: sum(worker.claimed for worker in workers)  # noqa: E731
        yield SimpleNamespace(workers=workers, statements=statements, claimed=claimed)
        for listener in listeners:
            listener.close()
        gate.set()
        for worker in workers:
            worker.components.claim_loop.close()
            worker.components.threads["claim-loop"].stop()
            worker.components.slots.close()
        deadline = time.monotonic() + 30
        for worker in workers:
            assert worker.components.threads["claim-loop"].join(deadline)
            assert worker.components.slots.join(deadline) == []


def beat_of(worker):
    return Beat(worker.id, "host", 1, "1", 1, 0, 0, None, ("idle_workers.hold",), False, 1.0, 10.0)


def pass_on(worker, resynced, hint):
    worker.components.on_hint(hint)
    if hint.subject == EVERY:
        resynced.add(worker.id)


def until_at_rest(workers):
    """Wait until no claim loop queries or is about to, except because of a late query."""

    def is_at_rest(worker):
        wake, thread = worker.components.context.wake, worker.components.threads["claim-loop"]
        return not (wake.will_query_soon or wake.is_second_query_due or thread.busy_seconds)

    until(lambda: all(map(is_at_rest, workers)), 40)


def late_queries(seconds):
    """Return how many workers query late in this time, which on a loaded machine is longer than the test waits."""
    return sum(LATE_SECONDS * LATE_FACTOR**number <= seconds for number in range(WORKERS))


def test_one_job_does_not_make_all_workers_query(kind, hold, idle):
    began = time.monotonic()
    hold.enqueue()
    until(lambda: idle.claimed() == 1)
    assert stays(lambda: idle.claimed() == 1, SECONDS)
    found = len(idle.statements)
    late = 0 if kind == "with budgets" else 1 + late_queries(time.monotonic() - began)
    assert found <= OF_A_QUERY * (1 + late) + 1, idle.statements.texts


def test_many_jobs_are_claimed_at_once_also_if_their_hints_were_merged(hold, idle):
    """A worker that found as many jobs as it had room for notifies others."""
    chains.enqueue_many([hold.item() for _ in range(20)])
    for _ in range(20):
        hold.enqueue()
    until(lambda: idle.claimed() == 40)


@only_with_budgets
def test_busy_workers_take_nothing_from_the_budget(hold, idle, monkeypatch):
    chains.enqueue_many([hold.item() for _ in range(WORKERS)])
    until(lambda: idle.claimed() == WORKERS)
    taken = []
    monkeypatch.setattr(InProcessNotifier, "take", lambda self, hint, limit, group: taken.append(hint))
    hold.enqueue()
    assert stays(lambda: not taken, 0.3)


@only_without_budgets
def test_dead_workers_at_the_front_of_the_order_delay_no_job(hold, idle):
    """Half of the workers ignore hints, and their rows still exist: the other half query soon after."""
    for worker in idle.workers[::2]:
        worker.components.wake_order.seconds_until = lambda hint: None
    for number in range(1, 11):
        hold.enqueue()
        until(lambda number=number: idle.claimed() == number)


def test_full_workers_with_a_backlog_do_not_notify_each_other(hold, idle):
    chains.enqueue_many([hold.item() for _ in range(2 * WORKERS)])
    until(lambda: idle.claimed() == WORKERS)
    until_at_rest(idle.workers)
    hold.enqueue()
    idle.statements.texts.clear()
    assert stays(lambda: not len(idle.statements), 0.5), idle.statements.texts
