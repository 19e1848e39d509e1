"""Starting a chain of an entry type by hand: first which, then with what."""

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import ADDITION
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains import chains, context
from django_jobchains.admin import audit
from django_jobchains.admin.acting import ActingOnChains
from django_jobchains.admin.forms import EnqueueForm, TypeForm
from django_jobchains.chains import Chain
from django_jobchains.conf import get_settings
from django_jobchains.exceptions import JobchainsError
from django_jobchains.job_types import JobType
from django_jobchains.processors import get_registry

PERMISSION = "enqueue_job"


class Enqueueing(ActingOnChains):
    def get_urls(self) -> list[Any]:
        return [self._path("enqueue/", self.enqueue_view, "enqueue"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        may_enqueue = self.may(request, PERMISSION)
        url = {"enqueue_url": self.url("enqueue") if may_enqueue else ""}
        return super().changelist_view(request, {**url, **(extra_context or {})})

    def entry_types(self, request: HttpRequest) -> Mapping[str, JobType[Any, Any]]:
        """What this user may start, by name; a subclass may offer less."""
        return {name: job_type for name, job_type in get_registry().job_types().items() if job_type.entry}

    def start(self, request: HttpRequest, job_type: JobType[Any, Any], input: Any, options: dict[str, Any]) -> Chain:
        """Enqueues it. The user is its actor unless the project has bound one; a subclass may bind more."""
        if "actor" in context.current():
            return chains.enqueue(job_type, input, **options)
        with context.bound(actor=_plain(request.user.pk)):
            return chains.enqueue(job_type, input, **options)

    def enqueue_view(self, request: HttpRequest) -> HttpResponse:
        if not self.may(request, PERMISSION):
            raise PermissionDenied
        types = self.entry_types(request)
        type_form = TypeForm(request.GET, types)
        if not type_form.chosen:
            return self._ask_to_enqueue(request, type_form, None)
        job_type = types[type_form.chosen]
        form = EnqueueForm(request.POST if request.method == "POST" else None, job_type=job_type)
        if form.is_valid():
            chain = self._start(request, job_type, form)
            if chain is not None:
                return HttpResponseRedirect(self._page_of_new(request, chain))
        return self._ask_to_enqueue(request, type_form, form)

    def _start(self, request: HttpRequest, job_type: JobType[Any, Any], form: EnqueueForm) -> Chain | None:
        """None when it was refused, which the form says then."""
        try:
            with transaction.atomic(using=get_settings().DATABASE):
                chain = self.start(request, job_type, form.cleaned_data["payload"], form.options())
                if not chain.deduplicated:
                    audit.log(request, [chain], _("Enqueued."), verb="enqueue", flag=ADDITION)
        except JobchainsError as error:
            problem = gettext("Nothing was enqueued: %(problem)s")
            form.add_error(None, ValidationError(problem, params={"problem": error}))
            return None
        if chain.deduplicated:
            messages.warning(request, gettext("Nothing was started: a chain with this key is there already."))
        else:
            messages.success(request, gettext("The chain was enqueued."))
        return chain

    def _page_of_new(self, request: HttpRequest, chain: Chain) -> str:
        """Its page if the user sees it."""
        is_seen = chain.id in self.visibility(request).chains([chain.id])
        return self.url("change", chain.id) if is_seen else self.url("enqueue")

    def _ask_to_enqueue(self, request: HttpRequest, type_form: TypeForm, form: EnqueueForm | None) -> HttpResponse:
        page = {
            **self.admin_site.each_context(request),
            "title": gettext("Enqueue a chain"),
            "opts": self.opts,
            "media": self.media,
            "type_form": type_form,
            "form": form,
            "back_url": self.url("changelist"),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_jobchains/enqueue.html", page)


def _plain(key: Any) -> int | str:
    """As JSON has it."""
    return key if isinstance(key, int) else str(key)
