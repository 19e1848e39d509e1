"""The page that renders parcel labels and shows their state."""

from uuid import UUID

from django import forms
from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from django_jobchains.chains import Job
from shop.labels import Label, Trouble, render_label

RECENT_LABELS = 6
#: An address has up to this many lines, separated by commas.
MAX_LINES = 5


class LabelForm(forms.Form):
    recipient = forms.CharField(max_length=30, initial="Ada Lovelace")
    address = forms.CharField(
        max_length=120, initial="12 St James's Square, London", help_text="Lines are separated by commas."
    )
    trouble = forms.ChoiceField(
        label="What the renderer does in its first attempt",
        choices=Trouble.choices,
        initial=Trouble.NONE,
        widget=forms.RadioSelect,
    )

    def clean_address(self) -> str:
        address: str = self.cleaned_data["address"]
        if address.count(",") >= MAX_LINES:
            raise forms.ValidationError(f"A label has room for {MAX_LINES} lines.")
        return address


@require_safe
def label_list(request: HttpRequest) -> HttpResponse:
    return _page(request, LabelForm())


@require_POST
def render_one(request: HttpRequest) -> HttpResponse:
    form = LabelForm(request.POST)
    if not form.is_valid():
        return _page(request, form)
    render_label.enqueue(Label(**form.cleaned_data), queue=settings.SHOP_QUEUE)
    return redirect("shop:labels")


@require_safe
def picture(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Return a rendered label, with a policy that forbids scripts if it is opened in a separate tab."""
    job = get_object_or_404(_jobs().filter(status="completed"), pk=job_id)
    headers = {"Content-Security-Policy": "default-src 'none'"}
    return HttpResponse(job.output, content_type="image/svg+xml", headers=headers)


def _page(request: HttpRequest, form: LabelForm) -> HttpResponse:
    jobs = list(_jobs().prefetch_related("failed_attempts").order_by("-chain_id")[:RECENT_LABELS])
    is_open = any(job.finished_at is None for job in jobs)
    return render(request, "shop/labels.html", {"form": form, "jobs": jobs, "is_open": is_open})


def _jobs() -> "QuerySet[Job]":
    """Return the jobs that render labels, each of which is a chain."""
    return Job.objects.of_type(render_label.name)
