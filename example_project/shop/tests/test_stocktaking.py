from unittest.mock import patch

from django.contrib.auth.models import User
from django.test import TestCase
from django.urls import reverse

from django_jobchains.models import Chain, JobProgress
from django_jobchains.testing import run_due_jobs
from shop.jobs import Charge, charge
from shop.models import Product


class StocktakingTests(TestCase):
    def test_a_visitor_follows_the_progress_and_cancels(self) -> None:
        page = self.client.post(reverse("shop:start_stocktaking"), follow=True)
        self.assertContains(page, "waiting for a worker")
        chain = Chain.objects.of_type("shop.count_stock").get()
        url = reverse("shop:stocktaking_state", args=[chain.id])
        waiting = {"status": "pending", "is_finished": False, "fraction": 0, "text": "waiting for a worker"}
        assert (chain.progress, self.client.get(url).json()) == (None, waiting)
        with patch("shop.stocktaking.SECONDS_PER_PRODUCT", 0):
            run_due_jobs()
        counted = f"counted: {Product.objects.count()}"
        assert self.client.get(url).json() == {
            "status": "completed", "is_finished": True, "fraction": 1, "text": counted,
        }  # fmt: skip
        self.client.post(reverse("shop:start_stocktaking"))
        other = Chain.objects.of_type("shop.count_stock").incomplete().get()
        page = self.client.post(reverse("shop:cancel_stocktaking", args=[other.id]), follow=True)
        self.assertContains(page, "hidden")
        assert other.refresh().status == "cancelled"

    def test_only_stocktakings_are_shown_and_cancelled(self) -> None:
        order = Chain.objects.get(pk=charge.enqueue(Charge(1)).id)
        for name in ("stocktaking", "stocktaking_state"):
            assert self.client.get(reverse(f"shop:{name}", args=[order.id])).status_code == 404
        assert self.client.post(reverse("shop:cancel_stocktaking", args=[order.id])).status_code == 404
        assert order.refresh().status == "pending"

    def test_the_selected_products_are_counted(self) -> None:
        Product.objects.filter(slug="cup").update(stock=7)
        self.client.force_login(User.objects.create_superuser("owner"))
        cup = Product.objects.get(slug="cup")
        form = {"action": "count_selected", "_selected_action": [cup.pk]}
        self.client.post(reverse("admin:shop_product_changelist"), form)
        with patch("shop.stocktaking.SECONDS_PER_PRODUCT", 0):
            run_due_jobs()
        chain = Chain.objects.of_type("shop.count_stock").get()
        assert (chain.status, chain.output) == ("completed", {"cup": 7})
        assert JobProgress.objects.get(job_id=chain.id).text == "counted: 1"
