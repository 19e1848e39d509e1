"""Wait for chains that a worker process runs, and read their outcomes and effects."""

from typing import Any

from django_jobchains.models import Chain, FailedAttempt
from tests.shop.models import Effect
from tests.support.waiting import until, until_completed


def ended(chain: Chain[Any]) -> Chain[Any]:
    """Wait until the chain has ended, and return it."""
    until(lambda: chain.refresh().status in ("completed", "failed", "cancelled"), 20, lambda: vars(chain.current_job))
    return chain


def output(chain: Chain[Any]) -> Any:
    until_completed(chain, 20)
    return chain.output


def labels(chain: Chain[Any]) -> list[str]:
    return list(Effect.objects.filter(job_id=chain.id).order_by("id").values_list("label", flat=True))


def failures(chain: Chain[Any]) -> list[tuple[str, str]]:
    found = FailedAttempt.objects.filter(job__chain_id=chain.id).order_by("lease_number")
    return [(failure.kind, failure.error) for failure in found]
