"""Jobs with plain handlers."""

import math
import os
from typing import Any

from django.db import transaction
from django.utils import translation

from django_jobchains import context
from django_jobchains.exceptions import LeaseLost
from django_jobchains.models import Chain
from django_jobchains.processors import FailJob, JobType, Processors, RescheduleJob, RunningJob
from tests.isolation.app.slices import AFTER_LOG_LINES, AT_ONCE, MIDDLEWARE, Added, Recorded, note, record_fields
from tests.shop.models import Effect

processors = Processors(backoff=AT_ONCE, max_attempts=3)
with_middleware = Processors(middleware=MIDDLEWARE)


@processors.register("isolation.double")
def double(job: RunningJob[int]) -> int:
    return job.input * 2


@processors.register("isolation.nothing")
def nothing(job: RunningJob[Any]) -> None:
    return None


@processors.register("isolation.pid")
def pid(job: RunningJob[Any]) -> int:
    return os.getpid()


@processors.register("isolation.describe")
def describe(job: RunningJob[Any]) -> dict[str, Any]:
    times = (job.created_at, job.run_at, job.last_attempt_at)
    return {
        "id": str(job.id),
        "chain_id": str(job.chain_id),
        "type_name": job.type_name,
        "attempt": job.attempt,
        "queue": job.queue,
        "priority": job.priority,
        "worker": job.worker,
        "max_attempts": job.max_attempts,
        "is_last_attempt": job.is_last_attempt,
        "are_aware": all(time.tzinfo is not None for time in times),
    }


@processors.register("isolation.complete")
def complete(job: RunningJob[Any]) -> str:
    with job.complete():
        note(job, "written")
    return "committed"


@processors.register("isolation.fails_after_complete", max_attempts=1)
def fails_after_complete(job: RunningJob[Any]) -> None:
    with job.complete():
        note(job, "written")
    raise ValueError("after the block")


@processors.register("isolation.staged")
def staged(job: RunningJob[Any]) -> str:
    with job.prepare():
        note(job, "prepared")
    with job.complete():
        note(job, "completed")
    return "done"


@processors.register("isolation.atomic", mode="atomic", max_attempts=2)
def atomic(job: RunningJob[Any]) -> int:
    note(job, f"attempt {job.attempt}")
    if job.attempt == 1:
        raise ValueError("the first attempt")
    return job.attempt


@processors.register("isolation.count_down", continues_with=["isolation.count_down"])
def count_down(job: RunningJob[int]) -> Any:
    return job.continue_with("isolation.count_down", job.input - 1) if job.input else "zero"


@processors.register("isolation.count_down_inside", continues_with=["isolation.count_down_inside"])
def count_down_inside(job: RunningJob[int]) -> Any:
    with job.complete():
        note(job, "written")
        return job.continue_with(count_down_inside, job.input - 1) if job.input else "zero"


@processors.register("isolation.forgets_to_return", max_attempts=1)
def forgets_to_return(job: RunningJob[Any]) -> None:
    job.continue_with(nothing)


@processors.register("isolation.sum_of_blockers")
def sum_of_blockers(job: RunningJob[Any]) -> int:
    blockers: list[Chain[int]] = list(job.blockers)
    return sum(blocker.output for blocker in blockers)


@processors.register("isolation.retried")
def retried(job: RunningJob[Any]) -> list[Any]:
    if job.attempt < 3:
        raise ValueError(f"Boom {job.attempt} \0 \ud800")
    return [job.attempt, job.last_error, job.is_last_attempt]


@processors.register("isolation.error", fail_on=KeyError, retry_if=lambda error: "again" in str(error))
def error(job: RunningJob[str]) -> None:
    kinds: dict[str, type[BaseException]] = {"key": KeyError, "exit": SystemExit, "memory": MemoryError}
    raise kinds.get(job.input, ValueError)(job.input)


@processors.register("isolation.exits")
def exits(job: RunningJob[str]) -> int:
    if job.attempt == 1:
        raise {"exit": SystemExit, "memory": MemoryError, "interrupt": KeyboardInterrupt}[job.input](job.input)
    return job.attempt


@processors.register("isolation.recursion", max_attempts=1)
def recursion(job: RunningJob[Any]) -> int:
    return recursion(job)  # type: ignore[no-any-return]


@processors.register("isolation.patient", backoff=lambda failures, error: 0.02 if "soon" in str(error) else 3600)
def patient(job: RunningJob[str]) -> int:
    if job.attempt == 1:
        raise ValueError(job.input)
    return job.attempt


@processors.register("isolation.rescheduled")
def rescheduled(job: RunningJob[Any]) -> int:
    if job.attempt == 1:
        raise RescheduleJob(delay=0.02, reason="not yet")
    return job.attempt


@processors.register("isolation.gives_up")
def gives_up(job: RunningJob[Any]) -> None:
    raise FailJob("no use")


@processors.register("isolation.leaves_open", max_attempts=1)
def leaves_open(job: RunningJob[Any]) -> None:
    transaction.atomic().__enter__()
    note(job, "written")


@processors.register("isolation.enqueues")
def enqueues(job: RunningJob[Any]) -> str:
    with job.complete():
        return str(double.enqueue(21).id)


@processors.register("isolation.followed", max_attempts=1, on_failure="isolation.mourns")
def followed(job: RunningJob[str]) -> None:
    raise ValueError(job.input)


@processors.register("isolation.mourns")
def mourns(job: RunningJob[Any]) -> str:
    return str(job.input["error"])


@processors.register("isolation.logs", max_attempts=2, backoff=AFTER_LOG_LINES)
def logs(job: RunningJob[Any]) -> None:
    job.log("first", amount=7)
    job.log("second", level="warning", odd=object)
    job.set_progress(0.5, "half")
    if job.attempt == 1:
        raise ValueError("the first attempt")


@processors.register("isolation.heeds")
def heeds(job: RunningJob[Any]) -> str:
    """Stop in the first attempt when it is aborted."""
    if job.attempt == 1:
        note(job, "started")
        job.signal.wait(30)
        note(job, f"aborted {job.signal.reason}")
        job.signal.raise_if_aborted()
    return "done"


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


@processors.register("isolation.language")
def language(job: RunningJob[str]) -> list[str]:
    """Return the active language, and activate another one, which must not affect the next attempt."""
    found = translation.get_language()
    translation.activate(job.input)
    return [found or "", translation.get_language() or ""]


@processors.register("isolation.invalid_output")
def invalid_output(job: RunningJob[Any]) -> Any:
    return math.nan if job.attempt == 1 else job.attempt


@with_middleware.register("isolation.wrapped")
def wrapped(job: RunningJob[Any, Any, Added]) -> dict[str, Any]:
    with job.complete():
        return {
            "provided": Recorded.of(job).text,
            "context": dict(job.context),
            "bound": dict(context.current()),
            "fields": record_fields(),
        }


#: Declared with a dataclass elsewhere, so that the input of this type must be an object.
strict: JobType[Any, Any] = JobType("isolation.strict", input=dict[str, int])


@processors.register(strict)
def strict_handler(job: RunningJob[dict[str, int]]) -> int:
    return job.input["number"]
