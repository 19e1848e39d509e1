"""The measured job types."""

import os
import time

from django.db import connections

from benchmarks import times
from benchmarks.project import marks
from benchmarks.project.burning import burn
from benchmarks.project.models import Effect, Import
from django_jobchains.processors import Concurrency, Continuation, Processors, RunningJob
from django_jobchains.records import RecordRun
from django_jobchains.telemetry import add_sink
from django_jobchains.telemetry.events import AttemptEnded, Event

STEPS = 5
#: The limit of the types with one, and how long their handlers take that keep a place.
LIMIT = 10
BUSY_SECONDS = 0.05

#: The database of the jobs, to which handlers also write, so that there is only one transaction.
USING = os.environ.get("BENCH_USING", "default")

processors = Processors()


@processors.register("bench.value")
def value(job: RunningJob[dict[str, int]]) -> int:
    """Return a value and write nothing."""
    marks.started()
    return job.input["i"]


@processors.register("bench.burn")
def busy(job: RunningJob[dict[str, int]]) -> int:
    """Keep a CPU busy."""
    marks.started()
    return burn(0.01)


@processors.records(Import, "bench.record")
def record(record: Import, run: RecordRun) -> None:
    """Handle a record, and write nothing."""
    marks.started()


@processors.register("bench.insert")
def insert(job: RunningJob[dict[str, int]]) -> int:
    """Write one row with a cursor, in the transaction that completes the job."""
    marks.started()
    with job.complete():
        _write(job)
    return job.input["i"]


@processors.register("bench.atomic")
def atomic(job: RunningJob[dict[str, int]]) -> int:
    """Write one row with a cursor; the whole attempt is one transaction."""
    marks.started()
    with job.prepare(mode="atomic"):
        _write(job)
    return job.input["i"]


@processors.register("bench.create")
def create(job: RunningJob[dict[str, int]]) -> int:
    """Write one row with the ORM, in the transaction that completes the job."""
    marks.started()
    with job.complete():
        Effect.objects.using(USING).create(job_id=job.id, value=job.input["i"])
    return job.input["i"]


@processors.register("bench.wake")
def wake(job: RunningJob[dict[str, int]]) -> None:
    times.append()


def limited_value(job: RunningJob[dict[str, int]]) -> int:
    marks.started()
    return job.input["i"]


processors.register("bench.limited", concurrency=Concurrency(LIMIT))(limited_value)
processors.register("bench.limited_keys", concurrency=Concurrency(LIMIT, key="key"))(limited_value)


@processors.register("bench.limited_busy", concurrency=Concurrency(LIMIT))
def limited_busy(job: RunningJob[dict[str, int]]) -> None:
    times.append()
    time.sleep(BUSY_SECONDS)


@processors.register("bench.limited_wake", concurrency=Concurrency(1))
def limited_wake(job: RunningJob[dict[str, int]]) -> None:
    """Append the time of the start. The time of the commit of the end follows."""
    times.append()
    add_sink(_append_end)
    time.sleep(BUSY_SECONDS)


def _append_end(event: Event) -> None:
    if isinstance(event, AttemptEnded):
        times.append()


@processors.register("bench.step")
def step(job: RunningJob[dict[str, int]]) -> Continuation | int:
    """Run one step of a chain."""
    marks.started()
    if job.input["i"] < STEPS:
        return job.continue_with(step, {"i": job.input["i"] + 1})
    return job.input["i"]


@processors.register("bench.timed_step")
def timed_step(job: RunningJob[dict[str, int]]) -> Continuation | int:
    """Run one step of a chain; the last step records the time."""
    if job.input["i"] < STEPS:
        return job.continue_with(timed_step, {"i": job.input["i"] + 1})
    times.append()
    return job.input["i"]


@processors.register("bench.join")
def join(job: RunningJob[None]) -> None:
    """Record the time of a job that waits for other chains."""
    times.append()


def _write(job: RunningJob[dict[str, int]]) -> None:
    with connections[USING].cursor() as cursor:
        # SQLite's driver does not accept a UUID.
        id_ = job.id if connections[USING].vendor == "postgresql" else job.id.hex
        cursor.execute("INSERT INTO project_effect (job_id, value) VALUES (%s, %s)", [id_, job.input["i"]])


if "BENCH_MARKS" in os.environ:
    marks.watch()
    marks.meet()
