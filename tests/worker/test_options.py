"""The arguments of ``Worker`` are checked when it is created; an error in the main loop loses no job."""

import threading
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobchains.models import Job
from django_jobchains.worker import Worker

#: The kinds of values are tested in tests/configuration/test_values.py: here, that each argument is checked by one.
INVALID = {
    "slots": [0],
    "async_slots": [0],
    "max_jobs": [0],
    "max_rss": [0, "500M"],
    "poll_seconds": [0, "5"],
    "shutdown_seconds": [-1],
    "max_active_seconds": [0],
    "queues": [[], [1], ["mail", None], 5, b"mail", "", ["new\nline"]],
    "types": [[], 5, [""]],
    "name": ["", "x" * 101, 5],
    "registry": [5, "default", [], 0],
    "burst": ["no", None],
    "maintenance_only": [1],
    "using": ["", 5, 0, "nowhere", ["default"]],
    "max_attempts": [0],
    "timeout": ["5x"],
    "lease": ["5x"],
    "backoff": [3],
}


@pytest.fixture
def wait(processors):
    """A type whose handler runs until it is aborted."""

    @processors.register("worker.wait")
    def wait(job):
        job.signal.wait(60)
        job.signal.raise_if_aborted()

    return wait


@pytest.mark.usefixtures("wait")
@pytest.mark.parametrize("argument", INVALID)
def test_invalid_argument_is_refused_by_name(make_worker, argument):
    for value in INVALID[argument]:
        with pytest.raises(ImproperlyConfigured, match=rf"^Worker\(\): {argument}="):
            make_worker(**{argument: value})


@pytest.mark.usefixtures("wait")
def test_durations_are_seconds_or_timedeltas(make_worker):
    for given, seconds in ((2, 2), (0.5, 0.5), (timedelta(minutes=1), 60), (timedelta(0), 0)):
        assert make_worker(shutdown_seconds=given).shutdown_seconds == seconds


def test_string_is_one_name(processors, make_worker):
    for name in ("shop.ship", "mail.send"):
        job_type = processors.register(name)(lambda job: None)
        for queue in ("mail", "m"):
            job_type.enqueue(queue=queue)
    make_worker(types="shop.*", queues="mail").run_until_idle()
    completed = Job.objects.with_status("completed").values_list("type_name", "queue")
    assert list(completed) == [("shop.ship", "mail")]


@pytest.mark.usefixtures("patient_stop")
@pytest.mark.parametrize("run", [Worker.run, Worker.run_until_idle])
def test_error_in_the_main_loop_hands_back_the_jobs(wait, make_worker, monkeypatch, run):
    chain, worker, running = wait.enqueue(), make_worker(shutdown_seconds=0), threading.Event()

    def is_over():
        if worker.running:
            running.set()
            raise MemoryError
        return False

    monkeypatch.setattr(worker, "_is_over", is_over)
    with pytest.raises(MemoryError):
        run(worker)
    assert running.is_set()
    assert not worker.is_stuck
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.crashes) == ("pending", 0, 0)


@pytest.mark.usefixtures("wait")
@pytest.mark.parametrize("call", [Worker.stop, Worker.run_until_idle])
def test_invalid_timeout_changes_nothing(start_worker, call):
    worker = start_worker()
    with pytest.raises(TypeError, match=r"timeout='5x' is not a duration"):
        call(worker, timeout="5x")
    assert worker.stop(timeout=timedelta(seconds=5)) == 0
