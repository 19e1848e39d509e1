"""Rows that handlers of these tests write, and queries for them."""

from collections.abc import Callable
from typing import Any

from django_jobchains.processors import RunningJob
from tests.shop.models import Effect


def write(job: RunningJob[Any], label: str, error: BaseException | None = None) -> Callable[[], str]:
    """Return a function for ``aprepare`` and ``acomplete`` that writes a row, and raises the error if there is one."""

    def function() -> str:
        Effect.objects.create(job_id=job.id, label=label)
        if error is not None:
            raise error
        return label

    return function


def effects() -> list[str]:
    return list(Effect.objects.order_by("id").values_list("label", flat=True))
