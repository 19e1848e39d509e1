"""A parcel is collected at the shop, posted through the letterbox, or handed over to the carrier."""

from django.core.mail import EmailMessage

from django_jobchains import Continuation, Processors, RunningJob
from shop.models import Parcel
from shop.parcels import ParcelId
from shop.patterns.go_to import HandOver, hand_over

processors = Processors()


@processors.register(
    "shop.choose_way", continues_with=["shop.hold_for_collection", "shop.post_letter", "shop.hand_over"]
)
def choose_way(job: RunningJob[ParcelId]) -> Continuation:
    """Only choose the next step. A step that also acted would repeat the action when it is retried."""
    parcel = job.input.load()
    if not parcel.address:
        return job.continue_with(hold_for_collection, job.input)
    if parcel.fits_letterbox:
        return job.continue_with(post_letter, job.input)
    return job.continue_with(hand_over, HandOver(parcel.pk))


@processors.register("shop.hold_for_collection", entry=False)
def hold_for_collection(job: RunningJob[ParcelId]) -> str:
    parcel = job.input.load()
    EmailMessage(
        subject=f"{parcel} is ready",
        body="You can collect it at the shop.\n",
        to=[parcel.order.email],
        headers={"Message-ID": f"<{job.id}@tin-kettle.example>"},
    ).send()
    with job.complete():
        parcel.enter(Parcel.State.READY)
        return "ready to be collected"


@processors.register("shop.post_letter", entry=False)
def post_letter(job: RunningJob[ParcelId]) -> str:
    with job.complete():
        job.input.load().enter(Parcel.State.POSTED)
        return "posted"
