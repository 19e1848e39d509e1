"""Jobs with effects that tests can count. Inputs: how many seconds the handler takes, or how many steps are left."""

import asyncio
import math
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from django_jobchains.processors import Backoff, Concurrency, Lease, Processors, Rate, RunningJob
from django_jobchains.records import RecordRun
from tests.records.models import Export, Upload
from tests.shop.models import Effect

#: Short, for tests in which leases expire. In others, a machine that is busy for a moment must not end them.
LEASE = Lease(float(os.environ.get("LEASE_SECONDS", "2")))
#: Jobs are retried until a fault is over. With a limit of attempts, they could fail before that.
processors = Processors(lease=LEASE, backoff=Backoff(0.1, 1, 0.1, 0), max_attempts=math.inf)
#: Separate, because on_failure works only in the project's registry.
followed = Processors(lease=LEASE, backoff=Backoff(0.1, 1, 0.1, 0))

LOOK_SECONDS = 0.02


def note(job, label):
    Effect.objects.create(job_id=job.id, label=label)


@processors.register("chaos.write")
def write(job: RunningJob[float]) -> int:
    """Write one effect in the transaction that completes the job."""
    time.sleep(job.input)
    with job.complete():
        note(job, "written")
        return os.getpid()


@processors.register("chaos.slow_write")
def slow_write(job: RunningJob[float]) -> None:
    """Like ``chaos.write``, but with a transaction that takes this long."""
    with job.complete():
        note(job, "written")
        time.sleep(job.input)


@processors.register("chaos.dies_then_fails", max_attempts=2)
def dies_then_fails(job):
    """Kill the worker in the first attempt, and raise an error in the second."""
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.attempt == 2:
        raise ValueError("the second attempt")


@processors.register("chaos.step", continues_with=["chaos.step"])
def step(job: RunningJob[int]) -> Any:
    """Write one effect for each step of a chain."""
    with job.complete():
        note(job, "written")
        return job.continue_with("chaos.step", job.input - 1) if job.input else None


@processors.register("chaos.first", continues_with=["chaos.step"])
def first(job: RunningJob[int]) -> Any:
    """The last step of a chain of ``chaos.step``, completed in a batch."""
    return job.continue_with(step, job.input)


@processors.register("chaos.attempt")
def attempt(job: RunningJob[float]) -> None:
    """Commit one effect for each attempt. The job is completed afterwards, in a batch."""
    time.sleep(job.input)
    note(job, f"attempt {job.attempt}")


@processors.register("chaos.hold")
def hold(job):
    """Wait in the first attempt for an effect "go on", even after an abort."""
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


@processors.register("chaos.gated")
def gated(job: RunningJob[str]) -> str:
    """Return when there is an effect with the input as its label, or after an abort."""
    note(job, "started")
    while not Effect.objects.filter(label=job.input).exists():
        job.signal.raise_if_aborted()
        time.sleep(LOOK_SECONDS)
    note(job, "returned")
    return job.input


@processors.register("chaos.async_heed")
async def async_heed(job):
    """Like ``chaos.heed``, on the event loop."""
    await Effect.objects.acreate(job_id=job.id, label="started")
    await asyncio.sleep(120)


@processors.register("chaos.async_block")
async def async_block(job):
    """Block the event loop, and ignore the abort signal."""
    await Effect.objects.acreate(job_id=job.id, label="started")
    time.sleep(120)  # noqa: ASYNC251


@processors.register("chaos.async_write")
async def async_write(job: RunningJob[float]) -> int:
    """Like ``chaos.write``."""
    await asyncio.sleep(job.input)
    await job.acomplete(lambda: note(job, "written"))
    return os.getpid()


@processors.register("chaos.heed")
def heed(job):
    """Run until the attempt is aborted."""
    note(job, "started")
    job.signal.wait(120)
    note(job, f"aborted: {job.signal.reason}")
    job.signal.raise_if_aborted()


@processors.register("chaos.cut_off", lease=Lease(6))
def cut_off(job: RunningJob[str]) -> int:
    """Run the first attempt until it is aborted, and write the time of the abort to a file that it has created."""
    if job.attempt == 1:
        Path(job.input).touch()
        job.signal.wait(120)
        Path(job.input).write_text(f"{time.time()} {job.signal.reason}")
        job.signal.raise_if_aborted()
    with job.complete():
        note(job, "written")
        return os.getpid()


@processors.register("chaos.outside")
def outside(job: RunningJob[str]) -> None:
    """Append the id of the job to this file: an effect outside of the database."""
    with Path(job.input).open("a") as file:
        file.write(f"{job.id}\n")


@processors.register("chaos.stuck")
def stuck(job: RunningJob[float]) -> None:
    """Ignore the abort signal."""
    note(job, "started")
    time.sleep(job.input)


@processors.register("chaos.forks")
def forks(job: RunningJob[int]) -> int | None:
    """Fork a process, send it the signal in the input when it runs, and return its exit code."""
    context = multiprocessing.get_context("fork")
    has_begun = context.Event()
    process = context.Process(target=lambda: has_begun.set() or time.sleep(60))
    process.start()
    has_begun.wait(30)
    os.kill(process.pid, job.input)
    process.join(20)
    code = process.exitcode
    process.kill()
    return code


@processors.register("chaos.patient")
def patient(job: RunningJob[float]) -> None:
    """Take this long, unless the attempt is aborted."""
    job.signal.wait(job.input)
    job.signal.raise_if_aborted()


@processors.register("chaos.nothing")
def nothing(job):
    """Complete in a batch."""


@processors.register("chaos.after", on_blocker_failure="run")
def after(job):
    """Run when the blockers have ended, whether they were completed or not."""


@processors.register("chaos.gather")
def gather(job: RunningJob[None]) -> int:
    """Write one effect after the blockers, and return how many there were."""
    with job.complete():
        note(job, "written")
        return len(job.blockers)


@processors.register("chaos.error", max_attempts=1)
def error(job: RunningJob[str]) -> None:
    raise ValueError(job.input)


@processors.register("chaos.grow")
def grow(job: RunningJob[int]) -> None:
    """Allocate this many megabytes, and keep them."""
    kept.append(bytearray(os.urandom(1024) * 1024 * job.input))


kept = []


@followed.register("chaos.dies", on_failure="chaos.mourns")
def dies(job: RunningJob[str]) -> None:
    """Kill the worker."""
    os.kill(os.getpid(), signal.SIGKILL)


@followed.register("chaos.mourns")
def mourns(job):
    """Return the input, which describes the job that failed."""
    return [job.input[name] for name in ("job_id", "type_name", "attempt", "error", "input")]


@processors.records(
    Upload,
    stalled_after=LEASE.seconds,
    heartbeat_every=0.5,
    max_resets=1_000,
    retry_after=0.1,
    poll_every=float(os.environ.get("RECORDS_POLL_SECONDS", "0.2")),
)
def convert(record: Upload, run: RecordRun) -> None:
    """Write one effect, in the transaction that completes the record unless it is to return."""
    run.signal.wait(record.size / 1000)
    if record.result == "returns":
        Effect.objects.create(job_id=UUID(int=record.pk), label="converted")
        return
    with run.complete():
        if record.result == "counts":
            Effect.objects.count()
        Effect.objects.create(job_id=UUID(int=record.pk), label="converted")


@processors.register("chaos.tick")
def tick(job: RunningJob[None]) -> None:
    """Write one effect for the tick of a schedule."""
    with job.complete():
        note(job, f"{job.schedule_name} {int(job.scheduled_for.timestamp())}")


for number in range(int(os.environ.get("SCHEDULES", "0"))):
    processors.schedule(f"s{number}", tick, every=1, on_missed="run_all")


def hold_place(job: RunningJob[dict[str, Any]]) -> None:
    """Write when the attempt starts and ends, by the clock of the database, and when it was claimed."""
    for label in (f"start {job.attempt} {job.last_attempt_at.isoformat()}", f"end {job.attempt}"):
        effect = Effect.objects.create(job_id=job.id, label=label)
        Effect.objects.filter(pk=effect.pk).update(created_at=Now())
        if label.startswith("start"):
            time.sleep(job.input["seconds"])


def hold_record(record: Export, run: RecordRun) -> None:
    """Like ``hold_place``. Each attempt has its own number."""
    for label in (f"start {record.lease_number} {record.started_at.isoformat()}", f"end {record.lease_number}"):
        effect = Effect.objects.create(job_id=record.pk, label=label)
        Effect.objects.filter(pk=effect.pk).update(created_at=Now())
        if label.startswith("start"):
            time.sleep(0.03)


if "LIMITED_RECORDS" in os.environ:
    processors.records(
        Export,
        name="chaos.records",
        concurrency=Concurrency(2, key="name"),
        stalled_after=LEASE.seconds,
        heartbeat_every=0.5,
        max_resets=1_000,
        retry_after=0.1,
        poll_every=0.2,
    )(hold_record)
for_key = processors.register("chaos.for_key", concurrency=Concurrency(2, key="key"))(hold_place)
for_all = processors.register("chaos.for_all", concurrency=Concurrency(3), fair="key")(hold_place)
_group = Concurrency(4, group="chaos.group")
of_group = processors.register("chaos.of_group", concurrency=_group)(hold_place)
also_of_group = processors.register("chaos.also_of_group", concurrency=_group)(hold_place)
of_queue = processors.register("chaos.of_queue", queue="narrow")(hold_place)


def write_start(job: RunningJob[dict[str, Any]]) -> None:
    """Write when the attempt was claimed, and when the handler was called, by the clock of the database."""
    effect = Effect.objects.create(job_id=job.id, label=job.last_attempt_at.isoformat())
    Effect.objects.filter(pk=effect.pk).update(created_at=Now())
    time.sleep(job.input["seconds"])


rated_by_key = processors.register("chaos.rated_by_key", rate=Rate(10, per=1, burst=3, key="key"))(write_start)
_rate = Rate(25, per=1, group="chaos.rated")
rated = processors.register("chaos.rated", rate=_rate, concurrency=Concurrency(3))(write_start)
also_rated = processors.register("chaos.also_rated", rate=_rate)(write_start)
