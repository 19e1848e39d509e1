"""A parcel whose address the carrier refuses goes back to an earlier step, with a better address.

``shop.hand_over`` → ``shop.correct_address`` → ``shop.hand_over`` again, twice at most.
"""

from dataclasses import dataclass

from django_jobchains.processors import Backoff, Continuation, Processors, RunningJob
from shop import carrier
from shop.models import Parcel
from shop.parcels import ParcelId
from shop.patterns.loop import Look, follow_parcel

MOST_CORRECTIONS = 2

processors = Processors(backoff=Backoff(initial_seconds=1, maximum_seconds=8))


@dataclass(frozen=True)
class HandOver:
    parcel_id: int
    corrections: int = 0


@processors.register(
    "shop.hand_over",
    entry=False,
    continues_with=["shop.follow_parcel", "shop.correct_address", "shop.hold_for_collection"],
)
def hand_over(job: RunningJob[HandOver]) -> Continuation:
    parcel = Parcel.objects.get(pk=job.input.parcel_id)
    try:
        code = carrier.hand_over(parcel.address, idempotency_key=str(job.id))
    except carrier.AddressRefused:
        if job.input.corrections >= MOST_CORRECTIONS:
            return job.continue_with("shop.hold_for_collection", ParcelId(parcel.pk))
        return job.continue_with(correct_address, job.input)
    with job.complete():
        parcel.enter(Parcel.State.ON_ITS_WAY, tracking_code=code)
        return job.continue_with(follow_parcel, Look(parcel.pk))


@processors.register("shop.correct_address", entry=False, continues_with=["shop.hand_over"])
def correct_address(job: RunningJob[HandOver]) -> Continuation:
    parcel = Parcel.objects.get(pk=job.input.parcel_id)
    address = carrier.correct(parcel.address)
    with job.complete():
        parcel.enter(Parcel.State.PACKED, address=address)
        return job.continue_with(hand_over, HandOver(parcel.pk, job.input.corrections + 1))
