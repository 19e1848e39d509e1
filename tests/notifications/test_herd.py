"""Fifty idle workers and a few jobs: so many look as these jobs need, and no job waits for the poll."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.notifications import Hint, Listener, get_notifier
from django_jobchains.notifications.in_process import InProcessNotifier
from django_jobchains.processors import JobType, Processors, Registry
from django_jobchains.store import Beat, PresentWorker
from django_jobchains.worker import Worker
from django_jobchains.worker.turns import LATE_FACTOR, LATE_SECONDS
from tests.worker.statements import Statements, statements_of_others
from tests.worker.waiting import stays, until

pytestmark = pytest.mark.django_db(transaction=True)

WORKERS = 50
IN_PROCESS = "django_jobchains.notifications.in_process.InProcessNotifier"
#: What a worker says when it looks because of a hint: what holds of queues, two claims, when the next job is due;
OF_A_LOOK = 4
#: and when it looks late, where one claim is enough.
OF_A_LATE_LOOK = 3
#: So many late looks come in the seconds that are watched.
LATE_LOOKS = 5
SECONDS = LATE_SECONDS * LATE_FACTOR ** (LATE_LOOKS - 1)


class WithoutBudgets(InProcessNotifier):
    def take(self, hint: Hint, most: int, group: str) -> int | None:
        return None


class Herd:
    """Workers with one slot each, of which only the claim loops run: a job that is claimed is held."""

    def __init__(self, workers: Sequence[Worker], statements: Statements) -> None:
        self.workers = workers
        self.statements = statements

    @property
    def claimed(self) -> int:
        return sum(worker.claimed for worker in self.workers)


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture
def hold(processors: Processors, gate: threading.Event) -> JobType[Any, Any]:
    return processors.register("herd.hold")(lambda job: gate.wait(30))


@pytest.fixture
def start_herd(hold: JobType[Any, Any], registry: Registry, gate: threading.Event) -> Iterator[Callable[[], Herd]]:
    workers: list[Worker] = []
    listeners: list[Listener] = []
    with statements_of_others() as statements:

        def start() -> Herd:
            workers.extend(Worker(registry=registry, slots=1, poll_seconds=60) for _ in range(WORKERS))
            present = [PresentWorker(beat_of(worker), None, None, 0.0) for worker in workers]  # type: ignore[arg-type]
            for worker in workers:
                worker.parts.turns.place(worker.id, present)
                worker.parts.slots.start()
                worker.parts.threads["claims"].start()
                listeners.append(get_notifier("default").listen(worker.parts._on_hint, {"job_scheduled"}))
            until(lambda: all(worker.parts.loop.idle.is_set() for worker in workers), 20)
            until(lambda: all(listener.is_alive for listener in listeners))
            assert quiet(statements)
            statements.texts.clear()
            return Herd(workers, statements)

        yield start
        for listener in listeners:
            listener.close()
        end(workers, gate)


def end(workers: Sequence[Worker], gate: threading.Event) -> None:
    gate.set()
    for worker in workers:
        worker.parts.loop.close()
        worker.parts.threads["claims"].stop()
        worker.parts.slots.close()
    deadline = time.monotonic() + 10
    for worker in workers:
        assert worker.parts.threads["claims"].join(deadline)
        assert worker.parts.slots.join(deadline) == []


def quiet(statements: Statements) -> bool:
    """Waits until nobody looks any more."""

    def has_settled() -> bool:
        before = len(statements)
        return stays(lambda: len(statements) == before, 0.3)

    until(has_settled, 20)
    return True


def beat_of(worker: Worker) -> Beat:
    return Beat(worker.id, "host", 1, "1", 1, 0, 0, None, ("herd.hold",), False, 1.0, 10.0)


NOTIFIERS = {
    "postgres": "django_jobchains.notifications.postgres.PostgresNotifier",
    "without budgets": f"{__name__}.WithoutBudgets",
    "with budgets": IN_PROCESS,
}


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.postgresql] * (name == "postgres")) for name in NOTIFIERS]
)
def kind(request: Any, settings: Any) -> str:
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": NOTIFIERS[request.param]}}
    return str(request.param)


def test_one_job_is_not_looked_for_by_all(kind: str, hold: JobType[Any, Any], start_herd: Callable[[], Herd]) -> None:
    herd = start_herd()
    hold.enqueue()
    until(lambda: herd.claimed == 1, 5)
    assert stays(lambda: herd.claimed == 1, SECONDS)
    late = 0 if kind == "with budgets" else OF_A_LOOK + OF_A_LATE_LOOK * LATE_LOOKS
    assert len(herd.statements) <= OF_A_LOOK + 1 + late


def test_many_jobs_are_claimed_at_once_by_as_many_workers(
    kind: str, hold: JobType[Any, Any], start_herd: Callable[[], Herd]
) -> None:
    herd = start_herd()
    chains.enqueue_many([hold.item() for _ in range(30)])
    until(lambda: herd.claimed == 30, 5)


def test_jobs_whose_hints_were_left_out_are_looked_for_as_well(
    kind: str, hold: JobType[Any, Any], start_herd: Callable[[], Herd]
) -> None:
    """Whoever found as many as it had room for tells others."""
    herd = start_herd()
    for _ in range(20):
        hold.enqueue()
    until(lambda: herd.claimed == 20, 5)


def test_with_every_worker_busy_nothing_is_taken_from_those_that_come(
    hold: JobType[Any, Any], start_herd: Callable[[], Herd], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without a free slot takes no part of the budget."""
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}}
    herd = start_herd()
    chains.enqueue_many([hold.item() for _ in range(WORKERS)])
    until(lambda: herd.claimed == WORKERS, 10)
    taken: list[Hint] = []
    monkeypatch.setattr(InProcessNotifier, "take", lambda self, hint, most, group: taken.append(hint))
    hold.enqueue()
    assert stays(lambda: not taken, 0.3)


def test_the_first_in_the_order_need_not_be_there(
    hold: JobType[Any, Any], start_herd: Callable[[], Herd], settings: Any
) -> None:
    """Half of them are dead, and nobody knows yet: the others look soon after."""
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": f"{__name__}.WithoutBudgets"}}
    herd = start_herd()
    for worker in herd.workers[::2]:
        worker.parts.turns.seconds_until = lambda hint: None  # type: ignore[method-assign]
    for number in range(1, 11):
        hold.enqueue()
        until(lambda number=number: herd.claimed == number, 5)  # type: ignore[misc]


def test_full_workers_with_a_backlog_do_not_tell_each_other_of_it(
    kind: str, hold: JobType[Any, Any], start_herd: Callable[[], Herd]
) -> None:
    herd = start_herd()
    chains.enqueue_many([hold.item() for _ in range(2 * WORKERS)])
    until(lambda: herd.claimed == WORKERS, 10)
    assert quiet(herd.statements)
    hold.enqueue()
    herd.statements.texts.clear()
    assert stays(lambda: not len(herd.statements), 0.5), herd.statements.texts
