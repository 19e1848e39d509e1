"""Jobs that run in every isolation: plain and async handlers, and batches. Most act on their first attempt only."""

import asyncio
import math
import os
from typing import Any

from django.db import connection, transaction
from django.utils import translation

from django_jobchains import context
from django_jobchains.exceptions import LeaseLost
from django_jobchains.pools import send
from django_jobchains.processors import Batch, FailJob, Processors, RescheduleJob, RunningJob
from tests.isolation.app.slices import AFTER_LOG_LINES, AT_ONCE, MIDDLEWARE, Added, Recorded, note, record_fields
from tests.shop.models import Effect
from tests.support.connections import end_session

#: For expressions, besides what this module defines.
__all__ = ("FailJob", "RescheduleJob", "connection", "end_session", "math", "os", "send", "transaction")

processors = Processors(backoff=AT_ONCE, max_attempts=3)
with_middleware = Processors(middleware=MIDDLEWARE)
batches = Processors(backoff=AT_ONCE, batch_limit=5, max_attempts=2)


@processors.register(
    "isolation.evaluates",
    backoff=lambda failures, error: 3600 if "late" in str(error) else 0.02,
    fail_on=KeyError,
    retry_if=lambda error: "never again" not in str(error),
)
def evaluates(job: RunningJob[str]) -> Any:
    """Return the value of the Python expression in the input."""
    return eval(job.input, {**globals(), "job": job})


def fail(job: RunningJob[Any], error: BaseException, attempts: int = 1) -> int:
    """Raise the error in the first attempts, and return the number of the later one."""
    if job.attempt <= attempts:
        raise error
    return job.attempt


def activate(language: str) -> list[str | None]:
    """Return the active language, and activate another one, which must not affect the next attempt."""
    found = translation.get_language()
    translation.activate(language)
    return [found, translation.get_language()]


@processors.register("isolation.staged", max_attempts=1)
def staged(job: RunningJob[str]) -> str:
    with job.prepare():
        note(job, "prepared")
    with job.complete():
        note(job, "completed")
    if job.input:
        raise ValueError(job.input)
    return "done"


@processors.register("isolation.count_down", continues_with=["isolation.count_down"])
def count_down(job: RunningJob[int]) -> Any:
    return job.continue_with("isolation.count_down", job.input - 1) if job.input else "zero"


@processors.register("isolation.logs", max_attempts=2, backoff=AFTER_LOG_LINES)
def logs(job: RunningJob[Any]) -> None:
    job.log("first", amount=7)
    job.log("second", level="warning", odd=object)
    job.set_progress(0.5, "half")
    if job.attempt == 1:
        raise ValueError("the first attempt")


@processors.register("isolation.heeds")
def heeds(job: RunningJob[Any]) -> None:
    note(job, "started")
    job.signal.wait(30)
    note(job, f"aborted {job.signal.reason}")
    job.signal.raise_if_aborted()


@processors.register("isolation.heeds_in_time", timeout=0.3)
def heeds_in_time(job: RunningJob[Any]) -> int:
    if job.attempt == 1:
        assert job.signal.wait(30)
        job.signal.raise_if_aborted()
    return job.attempt


@processors.register("isolation.too_late")
def too_late(job: RunningJob[Any]) -> None:
    """Wait until the lease is lost, and then try to complete the job."""
    if job.attempt > 1:
        return
    note(job, "started")
    while not Effect.objects.filter(job_id=job.id, label="go on").exists():
        job.signal.wait(0.02)
    try:
        with job.complete():
            note(job, "written")
    except LeaseLost as error:
        note(job, f"lost: {error.reason}")
        raise


@with_middleware.register("isolation.wrapped")
def wrapped(job: RunningJob[Any, Any, Added]) -> dict[str, Any]:
    with job.complete():
        return _surroundings(job)


def _surroundings(job: RunningJob[Any, Any, Added]) -> dict[str, Any]:
    return {
        "provided": Recorded.of(job).text,
        "context": dict(job.context),
        "bound": dict(context.current()),
        "fields": record_fields(),
    }


# Async handlers


@processors.register("isolation.async_complete", max_attempts=2)
async def async_complete(job: RunningJob[Any]) -> list[int]:
    await job.aprepare(lambda: note(job, f"prepared {job.attempt}"))
    await job.acomplete(lambda: note(job, f"completed {job.attempt}"))
    if job.attempt == 1:
        raise ValueError("the first attempt")
    return [job.attempt, await Effect.objects.filter(job_id=job.id).acount()]


@processors.register("isolation.async_heeds")
async def async_heeds(job: RunningJob[Any]) -> None:
    try:
        await Effect.objects.acreate(job_id=job.id, label="started")
        await asyncio.sleep(30)
    finally:
        await Effect.objects.acreate(job_id=job.id, label=f"aborted {job.signal.reason}")


@processors.register("isolation.async_leaves_task")
async def async_leaves_task(job: RunningJob[int]) -> int:
    asyncio.get_running_loop().create_task(asyncio.sleep(60))
    return job.input


@with_middleware.register("isolation.async_wrapped")
async def async_wrapped(job: RunningJob[Any, Any, Added]) -> dict[str, Any]:
    job.log("from a coroutine")
    return await job.acomplete(lambda: _surroundings(job))


# Batches


@batches.register("isolation.batch")
def batch(jobs: Batch[int]) -> None:
    for job in jobs:
        job.log(f"in a batch of {len(jobs)}")
        if job.input == 1:
            job.fail("no use")
        elif job.input == 2 and job.attempt == 1:
            job.retry()
        else:
            job.finish(job.input * 10)


@batches.register("isolation.batch_heeds")
def batch_heeds(jobs: Batch[Any]) -> None:
    """Wait until one of the jobs is aborted, and complete the others."""
    for job in jobs:
        note(job, "started")
    while not any(job.signal.aborted for job in jobs):
        jobs.signal.wait(0.02)
    for job in jobs:
        if job.signal.aborted:
            job.retry()
