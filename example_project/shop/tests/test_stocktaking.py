from unittest.mock import patch

from django.contrib.auth.models import User
from django.test import TestCase
from django.urls import reverse

from django_jobchains.models import Chain, JobProgress
from django_jobchains.testing import run_due_jobs
from shop.models import Product


class StocktakingTests(TestCase):
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
        assert JobProgress.objects.get(job_id=chain.id).text == f"counting {cup.name}"
