"""What was enqueued, and with which input."""

from typing import Any

from django_jobchains.exceptions import InvalidInput
from django_jobchains.job_types import JobType
from django_jobchains.models import Job
from django_jobchains.payloads import decode
from django_jobchains.processors import get_registry
from django_jobchains.store import get_store

_ANY_INPUT: Any = object()


def assert_enqueued(
    job_type: str | JobType[Any, Any], input: Any = _ANY_INPUT, count: int = 1, *, using: str | None = None
) -> list[Job]:
    """Asserts that there are ``count`` jobs of a type, continuations included, with this input if one is given.

    Returns them, the oldest first. The input is a value as ``enqueue`` takes it.
    """
    job_type = get_registry().job_type(job_type)
    jobs = list(Job.objects.using(get_store(using).using).of_type(job_type.name).order_by("created_at", "id"))
    wanted = None if input is _ANY_INPUT else decode(job_type.input_codec.encode(input, InvalidInput))
    found = [job for job in jobs if input is _ANY_INPUT or job.input == wanted]
    if len(found) != count:
        others = "".join(f"\n  {job.status}: {job.input!r}" for job in jobs) or " none"
        with_input = "" if input is _ANY_INPUT else f" with input {wanted!r}"
        raise AssertionError(f"{len(found)} jobs of {job_type.name!r}{with_input}, not {count}. Of the type:{others}")
    return found
