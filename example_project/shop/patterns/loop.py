"""A parcel is looked for again and again until it has arrived: a step that continues with itself."""

from dataclasses import dataclass
from datetime import timedelta

from django_jobchains.processors import Continuation, FailJob, Processors, RunningJob
from shop import carrier
from shop.models import Parcel

#: Short, so that you see it move. A real carrier is asked every quarter of an hour.
BETWEEN_LOOKS = timedelta(seconds=5)
MOST_LOOKS = 100

processors = Processors()


@dataclass(frozen=True)
class Look:
    parcel_id: int
    number: int = 1


@processors.register("shop.follow_parcel", entry=False, continues_with=["shop.follow_parcel"])
def follow_parcel(job: RunningJob[Look]) -> str | Continuation:
    """One look a job: each is committed, seen in the admin, and no slot is taken in between."""
    parcel = Parcel.objects.get(pk=job.input.parcel_id)
    scan = carrier.whereabouts(parcel.tracking_code)
    if scan == carrier.DELIVERED:
        with job.complete():
            parcel.enter(Parcel.State.DELIVERED, scan=scan)
            return scan
    if job.input.number >= MOST_LOOKS:
        raise FailJob(f"{parcel} has not arrived after {MOST_LOOKS} looks: ask the carrier, then retry this job.")
    with job.complete():
        parcel.enter(Parcel.State.ON_ITS_WAY, scan=scan)
        return job.continue_with(follow_parcel, Look(parcel.pk, job.input.number + 1), delay=BETWEEN_LOOKS)
