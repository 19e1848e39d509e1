"""Jobs with async handlers."""

import asyncio
import os
from typing import Any

from django_jobchains.processors import Processors, RunningJob
from tests.isolation.app.slices import AT_ONCE, MIDDLEWARE, Added, Recorded, note, record_fields
from tests.shop.models import Effect

processors = Processors(backoff=AT_ONCE, max_attempts=3)
with_middleware = Processors(middleware=MIDDLEWARE)


@processors.register("isolation.async_double")
async def async_double(job: RunningJob[int]) -> int:
    await asyncio.sleep(0.01)
    return job.input * 2


@processors.register("isolation.async_complete")
async def async_complete(job: RunningJob[Any]) -> str:
    await job.aprepare(lambda: note(job, "prepared"))
    await job.acomplete(lambda: note(job, "completed"))
    return "committed"


@processors.register("isolation.async_error", max_attempts=2)
async def async_error(job: RunningJob[Any]) -> int:
    await job.acomplete(lambda: note(job, f"attempt {job.attempt}"))
    if job.attempt == 1:
        raise ValueError("the first attempt")
    return job.attempt


@processors.register("isolation.async_queries")
async def async_queries(job: RunningJob[Any]) -> int:
    await Effect.objects.acreate(job_id=job.id, label="queried")
    return await Effect.objects.filter(job_id=job.id).acount()


@processors.register("isolation.async_heeds")
async def async_heeds(job: RunningJob[Any]) -> None:
    try:
        await Effect.objects.acreate(job_id=job.id, label="started")
        await asyncio.sleep(30)
    finally:
        await Effect.objects.acreate(job_id=job.id, label=f"aborted {job.signal.reason}")


@processors.register("isolation.async_leaves_task")
async def async_leaves_task(job: RunningJob[Any]) -> int:
    asyncio.get_running_loop().create_task(asyncio.sleep(60))
    return os.getpid()


@with_middleware.register("isolation.async_wrapped")
async def async_wrapped(job: RunningJob[Any, Any, Added]) -> dict[str, Any]:
    job.log("from a coroutine")
    return {"provided": Recorded.of(job).text, "context": dict(job.context), "fields": record_fields()}
