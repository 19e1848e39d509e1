"""Go-to: a refused address is corrected, and the parcel is handed over again."""

from unittest.mock import patch

from django.test import TestCase

from django_jobchains import testing
from django_jobchains.chains import Chain
from shop.models import CarrierEntry, Parcel
from shop.parcels import ParcelId
from shop.patterns.branched import choose_way
from shop.tests.baskets import place_order

LOGGER = "django_jobchains"
FORTH = ["shop.choose_way", "shop.hand_over"]
BACK = ["shop.correct_address", "shop.hand_over"]


class GoToTests(TestCase):
    def send(self, address: str) -> Chain:
        order = place_order("kettle", quantity=1)
        order.load_chain().jobs.delete()
        self.parcel = Parcel.objects.create(order=order, number=1, quantity=1, address=address)
        chain = choose_way.enqueue(ParcelId(self.parcel.pk))
        testing.run_due_jobs()
        self.parcel.refresh_from_db()
        return chain

    def types(self, chain: Chain) -> list[str]:
        return [job.type_name for job in chain.jobs]

    def test_a_good_address_is_handed_over_once(self) -> None:
        chain = self.send("10 Downing Street")
        assert self.types(chain) == [*FORTH, "shop.follow_parcel", "shop.follow_parcel"]

    def test_a_misspelt_address_goes_back_one_step(self) -> None:
        chain = self.send("10 Dowing Street")
        assert self.types(chain)[:-1] == [*FORTH, *BACK, "shop.follow_parcel"]
        assert self.parcel.address == "10 Downing Street"
        assert CarrierEntry.objects.get().address == "10 Downing Street"

    def test_the_number_of_corrections_is_limited(self) -> None:
        chain = self.send("1 Nowhere Lane")
        assert self.types(chain) == [*FORTH, *BACK, *BACK, "shop.hold_for_collection"]
        assert self.parcel.state == Parcel.State.READY
        assert not CarrierEntry.objects.exists()

    def test_each_visit_of_a_step_has_its_own_id_and_input(self) -> None:
        visits = [job for job in self.send("10 Dowing Street").jobs if job.type_name == "shop.hand_over"]
        assert [job.input for job in visits] == [{"parcel_id": self.parcel.pk, "corrections": n} for n in (0, 1)]
        assert len({job.pk for job in visits}) == 2

    def test_a_retried_hand_over_does_not_create_a_second_parcel(self) -> None:
        with patch.object(Parcel, "enter", side_effect=RuntimeError("broken on purpose")), self.assertLogs(LOGGER):
            chain = self.send("10 Downing Street")
        assert (self.types(chain), CarrierEntry.objects.count()) == (FORTH, 1)
        with testing.clock() as clock:
            clock.advance(10)
            testing.run_due_jobs(raise_errors=True)
        assert CarrierEntry.objects.count() == 1
