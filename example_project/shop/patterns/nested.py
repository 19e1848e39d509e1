"""An order leaves in as many parcels as it needs: each is a chain of its own, and the order's chain waits for all."""

from dataclasses import dataclass

from django_jobchains import chains
from django_jobchains.processors import Continuation, Processors, RunningJob
from shop.models import Order, Parcel
from shop.parcels import ParcelId
from shop.patterns.branched import choose_way

PIECES_IN_A_PARCEL = 6

processors = Processors()


@dataclass(frozen=True)
class Shipment:
    order_id: int


@processors.register("shop.ship_order", entry=False, continues_with=["shop.close_order"])
def ship_order(job: RunningJob[Shipment]) -> Continuation:
    """The parcels, their chains and the step that waits for them are one commit: there are all of them, or none."""
    order = Order.objects.get(pk=job.input.order_id)
    with job.complete():
        parcels = [
            Parcel.objects.create(order=order, number=number, quantity=quantity, address=order.address)
            for number, quantity in enumerate(_pieces(order.quantity), start=1)
        ]
        order.mark_delivery(Order.Delivery.SENT)
        sent = chains.enqueue_many([choose_way.item(ParcelId(parcel.pk), queue=job.queue) for parcel in parcels])
        return job.continue_with(close_order, job.input, blockers=sent)


@processors.register("shop.close_order", entry=False, blockers=["shop.choose_way"])
def close_order(job: RunningJob[Shipment]) -> list[str]:
    """Runs when the last parcel's chain is completed: its last step, however many there were."""
    order = Order.objects.get(pk=job.input.order_id)
    with job.complete():
        order.mark_delivery(Order.Delivery.DONE)
        return [str(parcel.output) for parcel in job.blockers]


def _pieces(quantity: int) -> list[int]:
    full, rest = divmod(quantity, PIECES_IN_A_PARCEL)
    return [PIECES_IN_A_PARCEL] * full + [rest] * bool(rest)
