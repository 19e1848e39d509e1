"""If the carrier refuses a parcel's address, the chain goes back to an earlier step with a corrected address.

``shop.hand_over`` → ``shop.correct_address`` → ``shop.hand_over`` again, at most twice.
"""

from dataclasses import dataclass

from django_jobchains import Backoff, Continuation, Processors, RunningJob
from shop import carrier
from shop.models import Parcel
from shop.parcels import ParcelId
from shop.patterns.loop import Check, follow_parcel

MAX_CORRECTIONS = 2

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
        if job.input.corrections >= MAX_CORRECTIONS:
            return job.continue_with("shop.hold_for_collection", ParcelId(parcel.pk))
        return job.continue_with(correct_address, job.input)
    with job.complete():
        parcel.enter(Parcel.State.ON_ITS_WAY, tracking_code=code)
        return job.continue_with(follow_parcel, Check(parcel.pk))


@processors.register("shop.correct_address", entry=False, continues_with=["shop.hand_over"])
def correct_address(job: RunningJob[HandOver]) -> Continuation:
    parcel = Parcel.objects.get(pk=job.input.parcel_id)
    address = carrier.correct(parcel.address)
    with job.complete():
        parcel.enter(Parcel.State.PACKED, address=address)
        return job.continue_with(hand_over, HandOver(parcel.pk, job.input.corrections + 1))
