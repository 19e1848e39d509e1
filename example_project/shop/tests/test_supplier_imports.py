"""Suppliers' files: queued by the page, processed within a budget, and shown in the admin."""

import logging
from typing import Any
from unittest.mock import patch

from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db.models import Q
from django.test import TestCase
from django.urls import reverse

from django_jobchains import records
from django_jobchains.testing import run_due_jobs
from shop.deliveries import queue_import
from shop.models import Product, SupplierImport
from shop.supplier_imports import LINES_AT_ONCE, ImportDelivery

at_once = patch("shop.supplier_imports.SECONDS_PER_LINE", 0)


def stock(slug: str) -> int:
    return Product.objects.get(slug=slug).stock


@at_once
class SupplierImportTests(TestCase):
    def setUp(self) -> None:
        Product.objects.update(stock=10)
        logging.disable(logging.ERROR)  # The failures are expected.
        self.addCleanup(logging.disable, logging.NOTSET)

    def test_a_file_adds_its_goods_in_the_transaction_that_completes_the_record(self) -> None:
        row = queue_import("may.csv", "cup;3\nkettle;2\ncup;1\n")
        run_due_jobs()
        row.refresh_from_db()
        assert (row.state, row.added) == ("completed", 6)
        assert (stock("cup"), stock("kettle")) == (14, 12)
        [entry] = row.execution_logs
        assert (entry["out"], entry["exit_code"]) == ("3 lines", 0)

    def test_a_wrong_line_fails_the_record_without_another_attempt(self) -> None:
        for content, error in (
            ("cup;3\nspoon;1", "Line 2: there is no product 'spoon'."),
            ("cup;0", "Line 1: '0' is not a quantity from 1 to 1000."),
        ):
            with self.subTest(content=content):
                row = queue_import("may.csv", content)
                run_due_jobs()
                row.refresh_from_db()
                assert row.state == "failed"
                assert error in (row.failure_message or "")
        assert stock("cup") == 10

    def test_a_corrected_file_can_be_retried_in_the_admin(self) -> None:
        self.client.force_login(User.objects.create_superuser("owner"))
        row = queue_import("may.csv", "spoon;1")
        run_due_jobs()
        page = reverse("admin:shop_supplierimport_change", args=[row.pk])
        self.assertContains(self.client.get(page), "there is no product")
        self.client.post(page, {"content": "cup;1"})
        self.client.post(reverse("admin:shop_supplierimport_record_retry", args=[row.pk]))
        run_due_jobs()
        row.refresh_from_db()
        assert (row.state, row.added, stock("cup")) == ("completed", 1, 11)
        self.assertContains(self.client.get(reverse("admin:shop_supplierimport_changelist")), "completed")

    def test_the_budget_admits_only_files_that_fit(self) -> None:
        processor, large = ImportDelivery(), SupplierImport(lines=LINES_AT_ONCE - 1)
        assert processor.pre_dequeue() == Q(lines__lte=LINES_AT_ONCE)
        processor.pre_handle(large)
        assert processor.pre_dequeue() == Q(lines__lte=1)
        processor.pre_handle(SupplierImport(lines=1))
        assert processor.pre_dequeue() is False
        processor.post_handle(large)
        assert processor.pre_dequeue() == Q(lines__lte=LINES_AT_ONCE - 1)


class DeliveriesPageTests(TestCase):
    def upload(self, content: bytes, name: str = "may.csv") -> Any:
        return self.client.post(reverse("shop:add_import"), {"file": SimpleUploadedFile(name, content)})

    def test_the_sample_file_is_queued_and_imported(self) -> None:
        self.client.post(reverse("shop:add_import"), {"sample": "yes"})
        page = self.client.get(reverse("shop:imports"))
        self.assertContains(page, '<span class="badge pending">queued</span>')
        self.assertContains(page, 'data-finished="no"')
        with at_once:
            run_due_jobs()
        page = self.client.get(reverse("shop:imports"))
        self.assertContains(page, '<span class="badge completed">completed</span>')
        self.assertContains(page, "100 pieces")
        self.assertContains(page, 'data-finished="yes"')
        self.assertNotContains(page, "http-equiv")

    def test_an_uploaded_file_is_queued(self) -> None:
        self.assertRedirects(self.upload(b"cup;3\n"), reverse("shop:imports"))
        assert records.queryset(SupplierImport).queued_count() == 1
        self.assertContains(self.client.get(reverse("shop:imports")), "may.csv")

    def test_a_file_that_cannot_be_imported_is_refused(self) -> None:
        for content, error in (
            (b"\xff\xfe", "not text in UTF-8"),
            (b"a" * 20_000, "larger than 10000 bytes"),
            (b"cup;1\n" * 41, "does not have 1 to 40 lines"),
            (b"\0", "does not have 1 to 40 lines"),
            (b"", "The submitted file is empty."),
        ):
            with self.subTest(content=content[:9]):
                self.assertContains(self.upload(content), error)
        assert not SupplierImport.objects.exists()
