"""Recurring work: each check plans the next one exactly once, and decides when it takes place."""

from datetime import timedelta
from unittest.mock import patch

from django.core import mail
from django.core.management import call_command
from django.test import TestCase

from django_jobchains import chains, testing
from django_jobchains.chains import Chain
from shop.models import FULL_SHELF, Product
from shop.patterns.recurring import LATEST, SOONEST, Watched, check_stock, until_next_check, watch

A_MINUTE = timedelta(minutes=1)


def planned() -> list[Chain]:
    return list(Chain.objects.of_type(check_stock.name).incomplete())


class RecurringTests(TestCase):
    def setUp(self) -> None:
        self.product = Product.objects.get(slug="sencha")

    def set_stock(self, stock: int) -> None:
        Product.objects.filter(pk=self.product.pk).update(stock=stock)

    def test_the_stock_decides_when_the_next_check_takes_place(self) -> None:
        watch(self.product.pk)
        checked = []
        with testing.clock() as clock:
            for stock in (FULL_SHELF, 0):
                self.set_stock(stock)
                checked += [outcome.job.output for outcome in testing.run_due_jobs(raise_errors=True)]
                clock.advance(until_next_check(stock) - A_MINUTE)
                assert testing.run_due_jobs() == []
                clock.advance(2 * A_MINUTE)
            checked += [outcome.job.output for outcome in testing.run_due_jobs(raise_errors=True)]
        assert checked == [FULL_SHELF, 0, 0]
        assert len(planned()) == 1

    def test_an_empty_shelf_is_checked_more_often_than_a_full_one(self) -> None:
        assert [until_next_check(stock) for stock in (0, FULL_SHELF, 2 * FULL_SHELF)] == [SOONEST, LATEST, LATEST]

    def test_the_buyer_gets_a_mail_if_there_is_little(self) -> None:
        self.set_stock(3)
        watch(self.product.pk)
        testing.run_due_jobs(raise_errors=True)
        assert [message.subject for message in mail.outbox] == [f"Order more of {self.product}"]

    def test_a_failed_check_plans_nothing_and_its_retry_plans_once(self) -> None:
        chain = watch(self.product.pk)
        with testing.clock() as clock:
            failing = patch("shop.patterns.recurring.watch", side_effect=_plans_and_fails)
            with failing, self.assertLogs("django_jobchains", "WARNING"):
                testing.run_due_jobs()
            assert [plan.id for plan in planned()] == [chain.id]
            clock.advance(600)
            testing.run_due_jobs(raise_errors=True)
        assert chain.refresh().status == "completed"
        assert len(planned()) == 1

    def test_a_product_that_is_gone_is_not_checked_again(self) -> None:
        watch(self.product.pk)
        self.product.delete()
        testing.run_due_jobs(raise_errors=True)
        assert planned() == []

    def test_starting_again_changes_nothing(self) -> None:
        products = Product.objects.count()
        for started in (products, 0):
            with self.subTest(started), patch("sys.stdout") as out:
                call_command("watch_stock", stdout=out)
                assert f"{started} stock checks are started." in str(out.write.call_args_list)
        assert len(planned()) == products

    def test_a_cancelled_check_can_be_started_again(self) -> None:
        chains.cancel(watch(self.product.pk).id)
        assert not watch(self.product.pk).deduplicated
        testing.assert_enqueued(check_stock, Watched(self.product.pk), count=2)


def _plans_and_fails(product_id: int, **options: object) -> None:
    check_stock.enqueue(Watched(product_id))
    raise RuntimeError("broken on purpose")
