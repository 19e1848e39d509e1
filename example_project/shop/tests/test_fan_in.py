"""Fan-out and fan-in: a price list is imported in parts, followed by one summary."""

from decimal import Decimal

from django.contrib.auth.models import User
from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_jobchains import chains, testing
from django_jobchains.chains import Chain, Job
from shop.models import PriceList, Product
from shop.patterns.fan_in import Part, Summary, import_part, start_import


class FanInTests(TestCase):
    def start(self, *lines: str) -> Chain:
        self.price_list = PriceList(lines="\n".join(lines))
        start_import(self.price_list)
        assert self.price_list.chain_id is not None
        return chains.get(self.price_list.chain_id)

    def summary(self) -> tuple[int | None, list[str]]:
        self.price_list.refresh_from_db()
        return self.price_list.changed, self.price_list.problems

    def test_a_long_list_is_imported_in_parts_and_summarized(self) -> None:
        chain = self.start(*["cup;18.50"] * 30, *["whisk;12.50"] * 30, "kettle;66")
        testing.run_due_jobs(limit=1, raise_errors=True)
        testing.assert_enqueued(import_part, Part(self.price_list.pk, 50, 61))
        testing.assert_enqueued(import_part, count=3)
        assert chain.refresh().status == "blocked"
        assert (chain.blockers_progress, chain.progress) == ((0, 3), None)
        testing.run_due_jobs(limit=2, raise_errors=True)
        assert (chain.refresh().status, chain.blockers_progress) == ("blocked", (2, 3))
        testing.run_due_jobs(raise_errors=True)
        assert (chain.refresh().status, self.summary()) == ("completed", (2, []))
        assert chain.output == Summary(changed=2, problems=[])
        assert Product.objects.get(slug="whisk").price == Decimal("12.50")

    def test_an_empty_list_has_a_summary(self) -> None:
        chain = self.start()
        testing.run_due_jobs(raise_errors=True)
        assert (chain.refresh().status, self.summary()) == ("completed", (0, []))

    def test_an_invalid_line_undoes_its_part_and_is_in_the_summary(self) -> None:
        chain = self.start(*["whisk;13"] * 25, "kettle;66", "coffee;9")
        with self.assertLogs("django_jobchains", "ERROR"):
            testing.run_due_jobs()
        changed, (problem,) = self.summary()
        assert (chain.refresh().status, changed) == ("completed", 1)
        assert "line 27: 'coffee;9'" in problem
        assert Product.objects.get(slug="kettle").price == Decimal(64)

    def test_a_part_reports_its_progress_even_if_it_fails(self) -> None:
        self.start(*["kettle;66"] * 25, "whisk;13", "coffee;9")
        with self.assertLogs("django_jobchains", "ERROR"):
            testing.run_due_jobs()
        good, bad = Job.objects.of_type("shop.import_part").order_by("chain_id")
        assert good.progress is not None
        assert bad.progress is not None
        assert (good.progress.fraction, good.progress.text) == (1, "line 25")
        assert [(line.text, line.fields) for line in good.log_lines.all()] == [
            ("Prices are set.", {"lines": 25, "changed": 1})
        ]
        assert (bad.progress.fraction, bad.progress.text, bad.log_lines.count()) == (0.5, "line 26", 0)

    def test_the_number_of_statements_does_not_depend_on_the_number_of_parts(self) -> None:
        counts = []
        for parts in (2, 200):
            self.start(*["cup;18.50"] * 25 * parts)
            with CaptureQueriesContext(connection) as queries:
                testing.run_due_jobs(limit=1, raise_errors=True)
            counts.append(len(queries))
            testing.run_due_jobs()
        assert counts[0] == counts[1]


class AdminTests(TestCase):
    def test_saving_a_price_list_in_the_admin_imports_it(self) -> None:
        self.client.force_login(User.objects.create_superuser("grace"))
        response = self.client.post(reverse("admin:shop_pricelist_add"), {"lines": "kettle;65.00"})
        self.assertRedirects(response, reverse("admin:shop_pricelist_changelist"))
        testing.run_due_jobs(raise_errors=True)
        assert Product.objects.get(slug="kettle").price == Decimal(65)
        assert PriceList.objects.get().changed == 1
