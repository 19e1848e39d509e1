"""Branches: each parcel takes exactly one of the ways."""

from unittest.mock import Mock

from django.core import mail
from django.test import TestCase

from django_jobchains import testing
from django_jobchains.chains import Chain
from shop.models import Parcel
from shop.parcels import ParcelId
from shop.patterns.branched import choose_way, hold_for_collection
from shop.tests.baskets import place_order

HOME = "7 Steep Street"


class BranchTests(TestCase):
    def send(self, *, product: str = "sencha", quantity: int = 1, address: str = "") -> Chain:
        order = place_order(product, quantity=quantity)
        parcel = Parcel.objects.create(order=order, number=1, quantity=quantity, address=address)
        order.load_chain().jobs.delete()  # The payment is not tested here.
        chain = choose_way.enqueue(ParcelId(parcel.pk))
        testing.run_due_jobs(limit=2, raise_errors=True)
        return chain.refresh()

    def types(self, chain: Chain) -> list[str]:
        return [job.type_name for job in chain.jobs]

    def test_a_parcel_without_an_address_is_collected(self) -> None:
        chain = self.send()
        assert self.types(chain) == ["shop.choose_way", "shop.hold_for_collection"]
        assert (chain.status, chain.output) == ("completed", "ready to be collected")
        assert Parcel.objects.get().state == Parcel.State.READY
        assert mail.outbox[0].to == ["ada@example.com"]

    def test_a_flat_parcel_is_posted(self) -> None:
        chain = self.send(address=HOME)
        assert self.types(chain) == ["shop.choose_way", "shop.post_letter"]
        assert (chain.status, chain.output) == ("completed", "posted")

    def test_a_thick_parcel_goes_with_the_carrier(self) -> None:
        assert self.types(self.send(product="kettle", address=HOME))[1] == "shop.hand_over"

    def test_several_flat_pieces_go_with_the_carrier(self) -> None:
        assert self.types(self.send(quantity=2, address=HOME))[1] == "shop.hand_over"

    def test_a_handler_is_a_plain_function(self) -> None:
        parcel = Parcel.objects.create(order=place_order(), number=1, quantity=1)
        job = Mock(input=ParcelId(parcel.pk))
        choose_way(job)
        job.continue_with.assert_called_once_with(hold_for_collection, job.input)
