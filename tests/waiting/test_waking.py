"""The hint says when to look: who waits is told long before the poll, and without hints by the poll."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_jobchains import chains, waiting
from django_jobchains.announcing import announce
from django_jobchains.chains import ChainCancelled, ChainFailed, ChainNotFound
from django_jobchains.notifications import EVERY, chain_finished, get_notifier, job_scheduled
from django_jobchains.policies import Backoff
from django_jobchains.processors import FailJob, JobType, Processors, RunningJob
from django_jobchains.store import Effects, Store
from tests.attempts.work import committed
from tests.store.jobs import claim, expire
from tests.waiting.waiters import (
    DEAF,
    DROPPING,
    IN_PROCESS,
    NULL,
    Ask,
    Looks,
    Waiting,
    approval,
    each_function,
    finish,
    until_waiting,
)
from tests.worker.fixtures import StartWorker
from tests.worker.waiting import until

pytestmark = committed

default_and_in_process = pytest.mark.parametrize(
    "settings_of", [{}, {"NOTIFIER": {"BACKEND": IN_PROCESS}}], ids=["default", "in_process"]
)


@default_and_in_process
@each_function
@pytest.mark.usefixtures("no_poll")
def test_the_hint_of_the_default_and_the_in_process_notifier_wakes(
    settings: Any, looks: Looks, settings_of: dict[str, Any], ask: Ask
) -> None:
    settings.JOBCHAINS = settings_of
    chain = approval.enqueue()
    waiter = Waiting(chain.id, ask=ask)
    looks.until_settled()
    finish(chain, "done")
    assert waiter.output() == "done"


@default_and_in_process
@pytest.mark.usefixtures("no_poll")
def test_a_workers_completion_wakes(
    settings: Any, looks: Looks, settings_of: dict[str, Any], processors: Processors, start_worker: StartWorker
) -> None:
    settings.JOBCHAINS = settings_of
    gate = threading.Event()

    @processors.register("waiting.gated")
    def gated(job: RunningJob[Any]) -> str:
        assert gate.wait(30)
        return "done"

    start_worker()
    waiter = Waiting(gated.enqueue().id)
    looks.until_settled()
    gate.set()
    assert waiter.output() == "done"


@pytest.mark.parametrize("backend", [NULL, DROPPING])
@each_function
def test_without_hints_the_poll_finds_it(
    settings: Any, monkeypatch: pytest.MonkeyPatch, looks: Looks, backend: str, ask: Ask
) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": backend}}
    if backend == DROPPING:
        monkeypatch.setattr(waiting, "POLL_SECONDS", 0.3)
    chain = approval.enqueue()
    waiter = Waiting(chain.id, ask=ask)
    until_waiting()
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.usefixtures("no_poll")
@each_function
def test_while_hints_cannot_arrive_it_is_polled(settings: Any, ask: Ask) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": DEAF}}
    chain = approval.enqueue()
    waiter = Waiting(chain.id, ask=ask)
    until_waiting()
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.usefixtures("no_poll")
class TestEveryWayToEnd:
    """By the hints of one process, which come one by one: whoever ends a chain sends its own."""

    @pytest.fixture(autouse=True)
    def _in_process(self, settings: Any) -> None:
        settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}, "REAP_SECONDS": 0.05}

    @pytest.fixture
    def gate(self) -> Iterator[threading.Event]:
        gate = threading.Event()
        yield gate
        gate.set()

    @pytest.fixture
    def ends_by(self, processors: Processors, start_worker: StartWorker, gate: threading.Event) -> Callable[..., Any]:
        def ends_by(end: Callable[[RunningJob[Any]], Any]) -> JobType[Any, Any]:
            def handler(job: RunningJob[Any]) -> Any:
                assert gate.wait(30)
                return end(job)

            job_type: JobType[Any, Any] = processors.register("waiting.gated")(handler)
            start_worker()
            return job_type

        return ends_by

    def test_a_handler_returns(self, ends_by: Any, gate: threading.Event, looks: Looks) -> None:
        waiter = Waiting(ends_by(lambda job: "done").enqueue().id)
        looks.until_settled()
        gate.set()
        assert waiter.output() == "done"

    def test_a_handler_completes_in_its_own_transaction(
        self, ends_by: Any, gate: threading.Event, looks: Looks
    ) -> None:
        def complete(job: RunningJob[Any]) -> str:
            with job.complete():
                return "done"

        waiter = Waiting(ends_by(complete).enqueue().id)
        looks.until_settled()
        gate.set()
        assert waiter.output() == "done"

    def test_a_handler_fails(self, ends_by: Any, gate: threading.Event, looks: Looks) -> None:
        def fail(job: RunningJob[Any]) -> None:
            raise FailJob("no")

        waiter = Waiting(ends_by(fail).enqueue().id)
        looks.until_settled()
        gate.set()
        with pytest.raises(ChainFailed):
            waiter.output()

    def test_a_running_handler_is_cancelled(
        self, processors: Processors, start_worker: StartWorker, looks: Looks
    ) -> None:
        @processors.register("waiting.stoppable")
        def stoppable(job: RunningJob[Any]) -> None:
            job.signal.wait(30)
            job.signal.raise_if_aborted()

        start_worker()
        chain = stoppable.enqueue()
        waiter = Waiting(chain.id)
        looks.until_settled()
        chains.cancel(chain.id)
        with pytest.raises(ChainCancelled):
            waiter.output()

    def test_a_pending_chain_is_cancelled(self, looks: Looks) -> None:
        chain = approval.enqueue()
        waiter = Waiting(chain.id)
        looks.until_settled()
        chains.cancel(chain.id)
        with pytest.raises(ChainCancelled):
            waiter.output()

    def test_it_is_deleted(self, looks: Looks) -> None:
        chain = approval.enqueue()
        waiter = Waiting(chain.id)
        looks.until_settled()
        chains.delete(chain.id)
        with pytest.raises(ChainNotFound):
            waiter.output()

    def test_it_fails_with_its_blocker(self, looks: Looks) -> None:
        blocker = approval.enqueue()
        strict: JobType[Any, Any] = JobType("waiting.strict", on_blocker_failure="fail")
        waiter = Waiting(strict.enqueue(blockers=[blocker]).id)
        looks.until_settled()
        chains.cancel(blocker.id)
        with pytest.raises(ChainFailed):
            waiter.output()

    def test_its_worker_crashed_too_often(self, store: Store, looks: Looks) -> None:
        chain = approval.enqueue()
        [job] = claim(store, types=[approval.name])
        waiter = Waiting(chain.id)
        looks.until_settled()
        expire(job)
        effects = Effects()
        store.reap(10, Backoff(), 1, effects=effects)
        announce("default", effects)
        with pytest.raises(ChainFailed):
            waiter.output()


@pytest.mark.usefixtures("no_poll")
def test_a_forged_or_doubled_hint_costs_looks_and_ends_nothing(settings: Any, looks: Looks) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}}
    chain = approval.enqueue()
    waiter = Waiting(chain.id)
    before = looks.until_settled(0.3)
    send = get_notifier("default").send
    send([chain_finished(chain.id)] * 5 + [chain_finished(EVERY)])
    assert looks.until_settled() > before
    assert waiter.is_alive()
    finish(chain, "done")
    assert waiter.output() == "done"


@pytest.mark.usefixtures("no_poll")
def test_hints_about_others_cost_no_look(settings: Any, looks: Looks) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}}
    chain, other = approval.enqueue(), approval.enqueue()
    waiter = Waiting(chain.id)
    before = looks.until_settled(0.3)
    send = get_notifier("default").send
    send([job_scheduled(EVERY), job_scheduled(approval.name), chain_finished("junk"), chain_finished("")])
    finish(other)
    assert looks.until_settled(0.3) == before
    finish(chain)
    waiter.output()


@pytest.mark.usefixtures("no_poll")
def test_after_a_hint_it_looks_again_because_senders_leave_out_repeats(
    settings: Any, monkeypatch: pytest.MonkeyPatch, looks: Looks
) -> None:
    """Also after one that came while it looked."""
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": IN_PROCESS}}
    monkeypatch.setattr(waiting, "LOOK_AGAIN_SECONDS", 0.3)
    chain = approval.enqueue()
    waiter = Waiting(chain.id)
    looks.until_settled()
    send = get_notifier("default").send

    def hint() -> float:
        at = time.monotonic()
        send([chain_finished(EVERY)])
        return at

    heard_at: list[float] = []
    looks.before = lambda: heard_at.append(hint())
    hint()
    until(lambda: heard_at and looks.at[-1] >= heard_at[0] + 0.3)
    finish(chain)
    waiter.output()
