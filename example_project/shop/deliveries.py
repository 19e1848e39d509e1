"""The page for suppliers' files: upload one, import the sample, and view the state of the others."""

from typing import Any

from django import forms
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from django_jobchains import records
from shop.models import SupplierImport
from shop.supplier_imports import LINES_AT_ONCE

MAX_BYTES = 10_000
LISTED_IMPORTS = 50
SAMPLE_NAME = "sample.csv"
SAMPLE = "sencha;40\noolong;25\nkettle;5\ncup;30\n"


class DeliveryForm(forms.Form):
    file = forms.FileField(
        label="Delivery note", help_text="A text file with one product per line, for example: sencha;40"
    )

    def clean_file(self) -> tuple[str, str]:
        """Return the name and the text of the file."""
        file: Any = self.cleaned_data["file"]
        if (file.size or 0) > MAX_BYTES:
            raise forms.ValidationError(f"The file is larger than {MAX_BYTES} bytes.")
        try:
            text = file.read().decode()
        except UnicodeDecodeError as error:
            raise forms.ValidationError("The file is not text in UTF-8.") from error
        if "\0" in text or not 1 <= len(text.splitlines()) <= LINES_AT_ONCE:
            raise forms.ValidationError(f"The file does not have 1 to {LINES_AT_ONCE} lines of text.")
        return str(file.name), text


@require_safe
def import_list(request: HttpRequest) -> HttpResponse:
    return _page(request, DeliveryForm())


@require_POST
def add_import(request: HttpRequest) -> HttpResponse:
    if "sample" in request.POST:
        queue_import(SAMPLE_NAME, SAMPLE)
        return redirect("shop:imports")
    form = DeliveryForm(request.POST, request.FILES)
    if not form.is_valid():
        return _page(request, form)
    queue_import(*form.cleaned_data["file"])
    return redirect("shop:imports")


def queue_import(file_name: str, content: str) -> SupplierImport:
    """Insert the row, which is the job. ``notify`` wakes up a worker after the commit, instead of at its next poll."""
    with transaction.atomic():
        row = SupplierImport.objects.create(file_name=file_name, content=content, lines=len(content.splitlines()))
        records.notify(SupplierImport)
    return row


def _page(request: HttpRequest, form: DeliveryForm) -> HttpResponse:
    imports = list(SupplierImport.objects.order_by("-pk").defer("content", "execution_logs")[:LISTED_IMPORTS])
    is_open = any(row.state in ("queued", "processing", "errored") for row in imports)
    return render(request, "shop/imports.html", {"form": form, "imports": imports, "is_open": is_open})
