"""The loop: checks with a pause between them, until the parcel has arrived."""

from unittest.mock import patch

from django.test import TestCase

from django_jobchains import chains, testing
from django_jobchains.chains import Chain, Job
from shop import carrier
from shop.models import Parcel
from shop.parcels import ParcelId
from shop.patterns.branched import choose_way
from shop.patterns.loop import CHECK_INTERVAL
from shop.tests.baskets import place_order


class LoopTests(TestCase):
    def setUp(self) -> None:
        order = place_order("kettle", quantity=1)
        order.load_chain().jobs.delete()
        self.parcel = Parcel.objects.create(order=order, number=1, quantity=1, address="7 Steep Street")
        self.chain_id = choose_way.enqueue(ParcelId(self.parcel.pk)).id

    @property
    def chain(self) -> Chain:
        return chains.get(self.chain_id)

    def steps(self) -> list[Job]:
        return list(self.chain.jobs.of_type("shop.follow_parcel"))

    def test_the_parcel_is_tracked_until_it_is_delivered(self) -> None:
        with testing.clock() as clock:
            seen = []
            for _ in range(4):
                testing.run_due_jobs(raise_errors=True)
                self.parcel.refresh_from_db()
                seen.append((self.parcel.scan, self.chain.status))
                clock.advance(CHECK_INTERVAL)
            assert testing.run_due_jobs() == []
        assert [scan for scan, _ in seen] == list(carrier.SCANS)
        assert [status for _, status in seen] == ["pending", "pending", "pending", "completed"]
        assert self.chain.output == "delivered"
        assert [job.input for job in self.steps()] == [{"parcel_id": self.parcel.pk, "number": n} for n in (1, 2, 3, 4)]

    def test_nothing_is_due_between_two_checks(self) -> None:
        testing.run_due_jobs(raise_errors=True)
        assert testing.run_due_jobs() == []
        last = self.steps()[-1]
        assert last.run_at - last.created_at >= CHECK_INTERVAL

    def test_run_now_checks_at_once(self) -> None:
        testing.run_due_jobs(raise_errors=True)
        chains.run_now(self.chain.current_job.id)
        testing.run_due_jobs(raise_errors=True)
        assert len(self.steps()) == 3

    def test_a_cancelled_chain_makes_no_more_checks(self) -> None:
        testing.run_due_jobs(raise_errors=True)
        chains.cancel(self.chain_id)
        with testing.clock() as clock:
            clock.advance(CHECK_INTERVAL)
            assert testing.run_due_jobs() == []
        assert self.chain.status == "cancelled"

    def test_a_parcel_that_never_arrives_fails_the_job_and_a_retry_continues(self) -> None:
        with patch("shop.patterns.loop.MAX_CHECKS", 1), self.assertLogs("django_jobchains", "ERROR"):
            testing.run_due_jobs()
        assert self.chain.status == "failed"
        assert "ask the carrier" in str(self.chain.last_error)
        chains.retry(self.chain.current_job.id)
        testing.run_due_jobs(raise_errors=True)
        assert self.chain.status == "pending"
        assert len(self.steps()) == 2

    def test_an_unreachable_carrier_is_retried_by_the_same_job(self) -> None:
        with patch("shop.carrier.whereabouts", side_effect=ConnectionError), self.assertLogs("django_jobchains"):
            testing.run_due_jobs()
        assert [(job.status, job.attempt) for job in self.steps()] == [("pending", 1)]
