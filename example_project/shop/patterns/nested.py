"""An order leaves in several parcels. Each has its own chain, and the order's chain waits for all of them."""

from dataclasses import dataclass

from django_jobchains import Continuation, Processors, RunningJob, chains
from shop.models import Order, Parcel
from shop.parcels import ParcelId
from shop.patterns.branched import choose_way

PIECES_PER_PARCEL = 6

processors = Processors()


@dataclass(frozen=True)
class Shipment:
    order_id: int


@processors.register("shop.ship_order", entry=False, continues_with=["shop.close_order"])
def ship_order(job: RunningJob[Shipment]) -> Continuation:
    """Create the parcels, their chains and the step that waits for them in one commit."""
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
    """Close the order. This runs when the chains of all parcels are completed."""
    order = Order.objects.get(pk=job.input.order_id)
    with job.complete():
        order.mark_delivery(Order.Delivery.DONE)
        return [str(parcel.output) for parcel in job.blockers]


def _pieces(quantity: int) -> list[int]:
    full, rest = divmod(quantity, PIECES_PER_PARCEL)
    return [PIECES_PER_PARCEL] * full + [rest] * bool(rest)
