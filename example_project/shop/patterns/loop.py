"""A parcel is tracked until it has arrived, by a step that continues with itself."""

from dataclasses import dataclass
from datetime import timedelta

from django_jobchains import Continuation, FailJob, Processors, RunningJob
from shop import carrier
from shop.models import Parcel

#: Short, for the demo. A real carrier would be queried every quarter of an hour.
CHECK_INTERVAL = timedelta(seconds=5)
MAX_CHECKS = 100

processors = Processors()


@dataclass(frozen=True)
class Check:
    parcel_id: int
    number: int = 1


@processors.register("shop.follow_parcel", entry=False, continues_with=["shop.follow_parcel"])
def follow_parcel(job: RunningJob[Check]) -> str | Continuation:
    """Query the carrier once per job. Each check is committed, and no slot is taken between two checks."""
    parcel = Parcel.objects.get(pk=job.input.parcel_id)
    scan = carrier.whereabouts(parcel.tracking_code)
    if scan == carrier.DELIVERED:
        with job.complete():
            parcel.enter(Parcel.State.DELIVERED, scan=scan)
            return scan
    if job.input.number >= MAX_CHECKS:
        raise FailJob(f"{parcel} has not arrived after {MAX_CHECKS} checks: ask the carrier, then retry this job.")
    with job.complete():
        parcel.enter(Parcel.State.ON_ITS_WAY, scan=scan)
        return job.continue_with(follow_parcel, Check(parcel.pk, job.input.number + 1), delay=CHECK_INTERVAL)
