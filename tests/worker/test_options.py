"""The arguments of ``Worker``: each is checked when it is given, and an error in the main loop loses no job."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobchains.models import Job
from django_jobchains.processors import JobType, Processors, RunningJob
from django_jobchains.worker import Worker
from tests.worker.fixtures import StartWorker

NOT_COUNTS: list[Any] = ["4", 0, -1, 2.5, True, [4], float("inf")]
NOT_SECONDS: list[Any] = [-1, "x", "5", float("nan"), float("inf"), 10**400, timedelta(-1), timedelta.max, True, [5]]
NOT_NAMES: list[Any] = [[], (), [1], ["mail", None], 5, b"mail", True]
NOT_FLAGS: list[Any] = ["no", 0, 1, None, []]

WRONG: dict[str, list[Any]] = {
    "slots": NOT_COUNTS,
    "async_slots": NOT_COUNTS,
    "max_jobs": NOT_COUNTS,
    "max_rss": [*NOT_COUNTS, "500M"],
    "poll_seconds": [*NOT_SECONDS, 0, timedelta(0)],
    "shutdown_seconds": NOT_SECONDS,
    "queues": [*NOT_NAMES, "", [""], ["new\nline"], "x" * 101],
    "types": NOT_NAMES,
    "name": [5, "", "x" * 101, "new\nline", ["mail"], True],
    "registry": [5, "default", [], 0],
    "burst": NOT_FLAGS,
    "using": ["", 5, 0, "nowhere", ["default"]],
    "max_attempts": ["3", 0, True],
    "timeout": ["5m", 0],
    "lease": ["5m"],
    "backoff": [3],
}


@pytest.fixture
def wait(processors: Processors) -> JobType[None, None]:
    """A handler that runs until it is asked to stop."""

    @processors.register("worker.wait")
    def wait(job: RunningJob[None]) -> None:
        job.signal.wait(60)
        job.signal.raise_if_aborted()

    return wait


@pytest.mark.usefixtures("wait")
@pytest.mark.parametrize(
    ("argument", "wrong"),
    [(argument, wrong) for argument, values in WRONG.items() for wrong in values],
    ids=lambda value: f"{value!r:.20}",
)
def test_a_wrong_argument_is_refused_by_its_name(make_worker: StartWorker, argument: str, wrong: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match=rf"^Worker\(\): {argument}="):
        make_worker(**{argument: wrong})


@pytest.mark.usefixtures("wait")
@pytest.mark.parametrize("seconds", [2, 0.5, timedelta(minutes=1)])
def test_durations_are_seconds_or_timedeltas(make_worker: StartWorker, seconds: Any) -> None:
    worker = make_worker(poll_seconds=seconds, shutdown_seconds=seconds)
    assert worker.shutdown_seconds == (seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)


@pytest.mark.usefixtures("wait")
def test_a_worker_may_stop_without_waiting(make_worker: StartWorker) -> None:
    assert make_worker(shutdown_seconds=timedelta(0)).shutdown_seconds == 0


def test_a_string_is_one_name_and_not_its_characters(processors: Processors, make_worker: StartWorker) -> None:
    for name in ("shop.ship", "mail.send"):
        part: JobType[Any, Any] = processors.register(name)(lambda job: None)
        for queue in ("mail", "m"):
            part.enqueue(queue=queue)
    make_worker(types="shop.*", queues="mail").run_until_idle()
    completed = Job.objects.with_status("completed").values_list("type_name", "queue")
    assert list(completed) == [("shop.ship", "mail")]


@pytest.mark.parametrize("run", [Worker.run, Worker.run_until_idle])
def test_an_error_in_the_main_loop_stops_the_worker_and_hands_its_jobs_back(
    wait: JobType[None, None],
    make_worker: StartWorker,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[[Worker], object],
) -> None:
    chain = wait.enqueue()
    worker = make_worker(shutdown_seconds=0)
    running = threading.Event()

    def fails() -> bool:
        if worker.running:
            running.set()
            raise MemoryError
        return False

    monkeypatch.setattr(worker, "_is_over", fails)
    with pytest.raises(MemoryError):
        run(worker)
    assert running.is_set()
    assert not worker.is_stuck
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.crashes) == ("pending", 0, 0)


@pytest.mark.usefixtures("wait")
@pytest.mark.parametrize("call", [Worker.stop, Worker.run_until_idle])
def test_a_timeout_that_is_no_length_of_time_changes_nothing(
    start_worker: StartWorker, call: Callable[..., object]
) -> None:
    worker = start_worker()
    with pytest.raises(TypeError, match=r"timeout='5m' is not a length of time"):
        call(worker, timeout="5m")
    assert worker.stop(timeout=timedelta(seconds=5)) == 0
