"""The page that enqueues a chain: a form for its type, then a form for its input and options."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import ADDITION
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains import chains
from django_jobchains import context as job_context
from django_jobchains.admin.actions.action import log_change
from django_jobchains.admin.actions.forms import PayloadForm, TimeFields, TypeForm
from django_jobchains.admin.actions.row_actions import ChainActionAdmin
from django_jobchains.chains import Chain
from django_jobchains.conf import current_database
from django_jobchains.declare.job_types import JobType
from django_jobchains.declare.registry import get_registry
from django_jobchains.exceptions import InvalidInput, JobchainsError
from django_jobchains.models import QUEUE_LENGTH
from django_jobchains.store.deduplication import KEY_LENGTH, Deduplicate
from django_jobchains.values import QUEUE

PERMISSION = "enqueue_job"


class EnqueueForm(TimeFields, PayloadForm):
    """The input and the options of a new chain."""

    queue = forms.CharField(label=_("Queue"), required=False, max_length=QUEUE_LENGTH)
    priority = forms.IntegerField(
        label=_("Priority"),
        required=False,
        min_value=-32_768,
        max_value=32_767,
        help_text=_("Jobs with a higher number run first."),
    )
    deduplication_key = forms.CharField(
        label=_("Deduplication key"),
        required=False,
        max_length=KEY_LENGTH,
        help_text=_("Until this chain has finished, no other chain of this type with the same key is enqueued."),
    )
    field_order = ("payload", "queue", "priority", "run_at", "delay_minutes", "deduplication_key")

    def __init__(self, *args: Any, job_type: JobType[Any, Any], **options: Any) -> None:
        label, legend = _("Input, as JSON"), _("Input")
        super().__init__(
            *args, codec=job_type.input_codec, error=InvalidInput, json_label=label, legend=legend, **options
        )
        self.fields["queue"].help_text = gettext("Leave empty for the queue of the type.")
        self.order_fields(self.field_order)

    def clean_queue(self) -> Any:
        return _parsed(
            partial(QUEUE.check, "queue"), self.cleaned_data["queue"], gettext("Use printable characters only.")
        )

    def clean_deduplication_key(self) -> Any:
        return _parsed(Deduplicate, self.cleaned_data["deduplication_key"], gettext("Use printable characters only."))

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for ``chains.enqueue``."""
        values = self.cleaned_data
        named = {
            "queue": values["queue"],
            "priority": values["priority"],
            "deduplicate": values["deduplication_key"],
        }
        return {name: value for name, value in named.items() if value is not None} | self.when()


def acting(request: HttpRequest) -> AbstractContextManager[Any]:
    """Make the user the actor of chains that are enqueued inside, unless the project has bound one."""
    if "actor" in job_context.current():
        return nullcontext()
    key = request.user.pk
    return job_context.bound(actor=key if isinstance(key, int) else str(key))


class EnqueueAdmin(ChainActionAdmin):
    """Adds the page that enqueues a chain to the chain admin."""

    def get_urls(self) -> list[Any]:
        return [self.page_path("enqueue/", self.enqueue_view, "enqueue"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        may_enqueue = self.may(request, PERMISSION)
        url = {"enqueue_url": self.page_url("enqueue") if may_enqueue else ""}
        return super().changelist_view(request, {**url, **(extra_context or {})})

    def entry_types(self, request: HttpRequest) -> Mapping[str, JobType[Any, Any]]:
        """Return the job types that this user may enqueue, by name. A subclass may return fewer.

        Types with required blockers are not among them, because the page has no fields for blockers.
        """
        types = get_registry().job_types()
        return {name: kind for name, kind in types.items() if kind.entry and not kind.blocker_slots}

    def start(self, request: HttpRequest, job_type: JobType[Any, Any], input: Any, options: dict[str, Any]) -> Chain:
        """Enqueue a chain. The user becomes its actor, unless the project has bound one. A subclass may bind more."""
        with acting(request):
            return chains.enqueue(job_type, input, **options)

    def enqueue_view(self, request: HttpRequest) -> HttpResponse:
        if not self.may(request, PERMISSION):
            raise PermissionDenied
        types = self.entry_types(request)
        type_form = TypeForm(request.GET, types)
        if not type_form.chosen:
            return self._enqueue_page(request, type_form, None)
        job_type = types[type_form.chosen]
        form = EnqueueForm(request.POST if request.method == "POST" else None, job_type=job_type)
        if form.is_valid():
            chain = self._enqueue(request, job_type, form)
            if chain is not None:
                is_seen = chain.id in self.visibility(request).chains([chain.id])
                return HttpResponseRedirect(self.page_url("change", chain.id) if is_seen else self.page_url("enqueue"))
        return self._enqueue_page(request, type_form, form)

    def _enqueue(self, request: HttpRequest, job_type: JobType[Any, Any], form: EnqueueForm) -> Chain | None:
        """Enqueue and log the chain, or add the error to the form and return None."""
        try:
            with transaction.atomic(using=current_database()):
                chain = self.start(request, job_type, form.cleaned_data["payload"], form.options())
                if not chain.deduplicated:
                    log_change(request, [chain], _("Enqueued."), verb="enqueue", flag=ADDITION)
        except JobchainsError as error:
            problem = gettext("The chain was not enqueued: %(problem)s")
            form.add_error(None, ValidationError(problem, params={"problem": error}))
            return None
        if chain.deduplicated:
            text = gettext("The chain was not enqueued: a chain with this deduplication key already exists.")
            messages.warning(request, text)
        else:
            messages.success(request, gettext("The chain was enqueued."))
        return chain

    def _enqueue_page(self, request: HttpRequest, type_form: TypeForm, form: EnqueueForm | None) -> HttpResponse:
        context = {
            "title": gettext("Enqueue a chain"),
            "type_form": type_form,
            "form": form,
            "back_url": self.page_url("changelist"),
        }
        return self.render(request, "admin/django_jobchains/enqueue.html", context)


def _parsed(parse: Callable[[str], Any], text: str, problem: str) -> Any:
    """Return None for an empty text, and raise a form error for an invalid one."""
    if not text:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise ValidationError(problem) from error
