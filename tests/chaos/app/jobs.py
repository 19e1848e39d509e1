"""Jobs whose effects can be counted afterwards. Inputs: how many seconds to take, or how many steps are left."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from django_jobchains.processors import Backoff, Lease, Processors, RunningJob
from tests.shop.models import Effect

processors = Processors(lease=Lease(2), backoff=Backoff(0.1, 1, 0.1, 0))

LOOK_SECONDS = 0.02


def note(job: RunningJob[Any], label: str) -> None:
    Effect.objects.create(job_id=job.id, label=label)


@processors.register("chaos.write")
def write(job: RunningJob[float]) -> int:
    """One effect, in the transaction that completes the job."""
    time.sleep(job.input)
    with job.complete():
        note(job, "written")
        return os.getpid()


@processors.register("chaos.slow_write")
def slow_write(job: RunningJob[float]) -> None:
    """As ``chaos.write``, but its transaction takes the time."""
    with job.complete():
        note(job, "written")
        time.sleep(job.input)


@processors.register("chaos.dies_then_fails", max_attempts=2)
def dies_then_fails(job: RunningJob[None]) -> None:
    """Its first attempt kills the worker, and its second raises."""
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.attempt == 2:
        raise ValueError("the second attempt")


@processors.register("chaos.step", continues_with=["chaos.step"])
def step(job: RunningJob[int]) -> Any:
    """A chain: one effect a step."""
    with job.complete():
        note(job, "written")
        return job.continue_with("chaos.step", job.input - 1) if job.input else None


@processors.register("chaos.first", continues_with=["chaos.step"])
def first(job: RunningJob[int]) -> Any:
    """Of a chain of ``chaos.step``; completed in a batch."""
    return job.continue_with(step, job.input)


@processors.register("chaos.attempt")
def attempt(job: RunningJob[float]) -> None:
    """One effect an attempt, committed at once; the job is completed after it, in a batch."""
    time.sleep(job.input)
    note(job, f"attempt {job.attempt}")


@processors.register("chaos.hold")
def hold(job: RunningJob[None]) -> int:
    """The first attempt waits for an effect "go on", whatever its signal says; later ones do not."""
    note(job, f"started by {os.getpid()}")
    while job.attempt == 1 and not Effect.objects.filter(label="go on").exists():
        time.sleep(LOOK_SECONDS)
    try:
        with job.complete():
            note(job, "written")
            return os.getpid()
    except BaseException as error:
        note(job, f"{type(error).__name__} in {os.getpid()}")
        raise


@processors.register("chaos.async_heed")
async def async_heed(job: RunningJob[None]) -> None:
    """As ``chaos.heed``, on the event loop."""
    await Effect.objects.acreate(job_id=job.id, label="started")
    await asyncio.sleep(120)


@processors.register("chaos.async_block")
async def async_block(job: RunningJob[None]) -> None:
    """Blocks the event loop, and does not hear."""
    await Effect.objects.acreate(job_id=job.id, label="started")
    time.sleep(120)  # noqa: ASYNC251


@processors.register("chaos.async_write")
async def async_write(job: RunningJob[float]) -> int:
    """As ``chaos.write``."""
    await asyncio.sleep(job.input)
    await job.acomplete(lambda: note(job, "written"))
    return os.getpid()


@processors.register("chaos.heed")
def heed(job: RunningJob[None]) -> None:
    """Runs until it is told to stop, and stops then."""
    note(job, "started")
    job.signal.wait(120)
    note(job, f"aborted: {job.signal.reason}")
    job.signal.raise_if_aborted()


@processors.register("chaos.cut_off", lease=Lease(6))
def cut_off(job: RunningJob[str]) -> int:
    """The first attempt runs until it is told to stop, and writes into a file when that was."""
    if job.attempt == 1:
        note(job, "started")
        job.signal.wait(120)
        Path(job.input).write_text(f"{time.time()} {job.signal.reason}")
        job.signal.raise_if_aborted()
    with job.complete():
        note(job, "written")
        return os.getpid()


@processors.register("chaos.stuck")
def stuck(job: RunningJob[float]) -> None:
    """Does not hear."""
    note(job, "started")
    time.sleep(job.input)


@processors.register("chaos.patient")
def patient(job: RunningJob[float]) -> None:
    """Takes its time, unless it is told to stop."""
    job.signal.wait(job.input)
    job.signal.raise_if_aborted()


@processors.register("chaos.nothing")
def nothing(job: RunningJob[Any]) -> None:
    """Completed in a batch."""


@processors.register("chaos.error", max_attempts=1)
def error(job: RunningJob[str]) -> None:
    raise ValueError(job.input)


@processors.register("chaos.grow")
def grow(job: RunningJob[int]) -> None:
    """Takes so many megabytes, and keeps them."""
    kept.append(bytearray(os.urandom(1024) * 1024 * job.input))


kept: list[bytearray] = []
