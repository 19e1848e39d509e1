"""The durations of attempts are stored by the statements that end them."""

from datetime import timedelta

import pytest

from django_jobchains import chains
from django_jobchains.chains.tree import Extent, tree_of
from django_jobchains.children.child_process import close_preload
from django_jobchains.isolation import Isolation
from django_jobchains.models import Job
from tests.support.attempts import committed
from tests.support.fixtures import only_slice
from tests.support.jobs import is_a_minute, start_a_minute_earlier
from tests.support.waiting import until

pytestmark = committed


processors = only_slice()


def step_of(chain):
    tree = tree_of(chain.id, Extent(), "default")
    assert tree is not None
    return tree.steps[0]


def in_a_thread(job):
    start_a_minute_earlier(job.id)
    if job.input:
        raise ValueError("no")


async def on_the_loop(job):
    claimed_at = (await Job.objects.aget(pk=job.id)).last_attempt_at
    await Job.objects.filter(pk=job.id).aupdate(last_attempt_at=claimed_at - timedelta(minutes=1))
    if job.input:
        raise ValueError("no")


def in_a_batch(jobs):
    for job in jobs:
        start_a_minute_earlier(job.id)
    for job in jobs:
        if job.input:
            job.fail("no")


@pytest.mark.parametrize(
    ("handler", "options"), [(in_a_thread, {}), (on_the_loop, {}), (in_a_batch, {"batch_limit": 2})]
)
def test_the_duration_is_stored_wherever_the_handler_runs(processors, start_worker, handler, options):
    job_type = processors.register("shop.timed", max_attempts=1, **options)(handler)
    completed, failed = chains.enqueue_many([job_type.item(0), job_type.item(1)])
    start_worker()
    until(lambda: completed.refresh().status == "completed" and failed.refresh().status == "failed")
    assert is_a_minute(step_of(completed).duration_seconds)
    assert is_a_minute(step_of(failed).duration_seconds)
    assert is_a_minute(step_of(failed).attempts[0].duration_seconds)


@pytest.mark.slow
def test_the_duration_of_an_attempt_in_a_child_process(processors, start_worker, monkeypatch):
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.isolation.worker_settings")
    close_preload()
    isolation = Isolation("process", grace_seconds=0.1)
    done, died, killed = (
        processors.register(f"isolation.{name}", isolation=isolation, max_attempts=1)(lambda job: None).enqueue(value)
        for name, value in (("count_down", 0), ("dies", "SIGKILL"), ("hangs_for_ever", 0))
    )
    start_worker(slots=3)
    until(lambda: killed.refresh().status == "running")
    start_a_minute_earlier(killed.id)
    chains.cancel(killed)
    until(lambda: killed.refresh().status == "cancelled" and done.refresh().status == "completed")
    until(lambda: step_of(died).attempts)
    close_preload()
    assert is_a_minute(step_of(killed).duration_seconds)
    assert step_of(done).duration_seconds is not None
    [crash] = step_of(died).attempts[:1]
    assert crash.kind == "crash"
    assert crash.duration_seconds is not None
