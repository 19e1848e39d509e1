"""Completing a job by hand: its output, or the next job of its chain."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains import chains
from django_jobchains.admin.forms import ActionForm, CompleteForm, ContinueForm, TypeForm
from django_jobchains.admin.payloads import Payloads
from django_jobchains.admin.verbs import HAS_GONE_ON, Find, Refused, Target, Verb
from django_jobchains.exceptions import JobTypeNotFound
from django_jobchains.job_types import JobType
from django_jobchains.payloads import Codec
from django_jobchains.processors import get_registry
from django_jobchains.statuses import OPEN


class Complete(Verb):
    """Of one job: each output is a decision of its own. The form brings the output, or the next job and its input."""

    name = "complete"
    label = _("Complete")
    permission = "complete_job"
    statuses = OPEN
    meaning = _("The job ends with what you write here. A worker that runs it is told, and its result does not count.")
    template = "complete"
    is_for_many = False

    def make_form(self, request: HttpRequest, targets: Sequence[Target], data: Any) -> ActionForm:
        [target] = targets
        own = _declared(target.job.type_name)
        if chosen := self._type_form(request, own).chosen:
            return ContinueForm(data, shown=target.job.id, target=get_registry().job_type(chosen))
        return CompleteForm(data, shown=target.job.id, codec=own.output_codec if own else Codec())

    def preview(self, request: HttpRequest, targets: Sequence[Target], find: Find) -> dict[str, Any]:
        [target] = targets
        own = _declared(target.job.type_name)
        return {
            "job": target.job,
            "is_declared": own is not None,
            "type_form": self._type_form(request, own),
            "input": Payloads(request).json(target.job.input),
        }

    def _type_form(self, request: HttpRequest, own: JobType[Any, Any] | None) -> TypeForm:
        known = get_registry().job_types()
        allowed = known if own is None or own.continues_with is None else known.keys() & own.continues_with
        return TypeForm(request.GET, allowed)

    def do(self, targets: Sequence[Target], form: Any) -> Collection[UUID]:
        [target] = targets
        payload = form.cleaned_data["payload"]
        with chains.complete(target.chain_id) as current:
            if current.job.id != form.cleaned_data["job"]:
                raise Refused(HAS_GONE_ON)
            if form.target is None:
                current.finish(payload)
            else:
                current.continue_with(form.target, payload)
        return {target.row.pk}

    def done(self, count: int) -> str:
        return gettext("The job is completed.")

    def entry(self, form: Any) -> Any:
        if form.target is None:
            return _("Completed.")
        return format_lazy(_("Completed, and continued with {type}."), type=form.target.name)


def _declared(type_name: str) -> JobType[Any, Any] | None:
    """None for a type that no app declares any more."""
    try:
        return get_registry().job_type(type_name)
    except JobTypeNotFound:
        return None
