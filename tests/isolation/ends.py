"""Wait for chains that a worker process runs, and read their outcomes and effects."""

from datetime import timedelta

from django.utils.timezone import now

from django_jobchains.models import FailedAttempt, Job
from tests.shop.models import Effect
from tests.support.waiting import until, until_completed


def ended(chain):
    """Wait until the chain has ended, and return it."""
    until(lambda: chain.refresh().status in ("completed", "failed", "cancelled"), 60, lambda: vars(chain.current_job))
    return chain


def output(chain):
    until_completed(chain, 60)
    return chain.output


def labels(chain):
    return list(Effect.objects.filter(job_id=chain.id).order_by("id").values_list("label", flat=True))


def failures(chain):
    found = FailedAttempt.objects.filter(job__chain_id=chain.id).order_by("lease_number")
    return [(failure.kind, failure.error) for failure in found]


def expire_lease(job_id):
    """Let the lease of a running job end now. Its worker must not renew it any more."""
    assert Job.objects.filter(pk=job_id, status="running").update(leased_until=now() - timedelta(seconds=1))
