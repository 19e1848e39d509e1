"""Completing jobs by hand: their output, or the next job of their chains."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.http import HttpRequest
from django.utils.formats import localize
from django.utils.text import format_lazy
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_jobchains import chains
from django_jobchains.admin.forms import ActionForm, CompleteForm, ContinueForm, NextTypeForm
from django_jobchains.admin.verbs import HAS_GONE_ON, Find, Refused, Target, Verb
from django_jobchains.admin.words import some_of
from django_jobchains.exceptions import JobTypeNotFound
from django_jobchains.job_types import JobType
from django_jobchains.payloads import Codec
from django_jobchains.processors import get_registry
from django_jobchains.statuses import OPEN

if TYPE_CHECKING:
    from django_jobchains.admin.acting import Acting


class Complete(Verb):
    """One job, or several of a type with the same output, or the same next job and input. Each by itself."""

    name = "complete"
    label = _("Complete")
    permission = "complete_job"
    statuses = OPEN
    meaning = _("The job ends with what you write here. A worker that runs it is told, and its result does not count.")
    template = "complete"
    #: Each takes some statements.
    most_at_once = 100
    is_one_by_one = True

    def refusal_of(self, request: HttpRequest, target: Target) -> Any:
        """Also of a chain that has gone on since the page showed its job."""
        shown = request.POST.getlist("job")
        has_gone_on = bool(shown) and str(target.job.id) not in shown
        return super().refusal_of(request, target) or (HAS_GONE_ON if has_gone_on else "")

    def refusal_together(self, targets: Sequence[Target]) -> Any:
        types = sorted({target.job.type_name for target in targets})
        if len(types) < 2:
            return ""
        return gettext("the jobs are of different types (%(types)s), choose those of one") % {"types": some_of(types)}

    def make_form(self, acting: "Acting", request: HttpRequest, targets: Sequence[Target], data: Any) -> ActionForm:
        own, shown = declared(targets[0].job.type_name), [target.job.id for target in targets]
        if chosen := self._type_form(acting, request, targets).chosen:
            return ContinueForm(data, shown=shown, target=get_registry().job_type(chosen))
        return CompleteForm(data, shown=shown, codec=own.output_codec if own else Codec())

    def preview(self, acting: "Acting", request: HttpRequest, targets: Sequence[Target], find: Find) -> dict[str, Any]:
        target = targets[0]
        payloads = acting.visibility(request).payloads(target.row, target.job)
        return {
            "job": target.job,
            "is_declared": declared(target.job.type_name) is not None,
            "type_form": self._type_form(acting, request, targets),
            "input": payloads.json(target.job.input) if len(targets) == 1 else None,
        }

    def _type_form(self, acting: "Acting", request: HttpRequest, targets: Sequence[Target]) -> NextTypeForm:
        """Offer the types that all of the chains may continue with.

        The chosen type comes with the answer; in the address of a list, the same parameter is a filter.
        """
        allowed = set(continuations(targets[0].job.type_name))
        for target in targets:
            allowed &= acting.next_types(request, target.job).keys()
        return NextTypeForm(request.POST if request.method == "POST" else request.GET, allowed)

    def do(self, targets: Sequence[Target], form: Any) -> Collection[UUID]:
        [target] = targets
        payload = form.cleaned_data["payload"]
        with chains.complete(target.chain_id) as current:
            if current.job.id != target.job.id:
                raise Refused(HAS_GONE_ON)
            if form.target is None:
                current.finish(payload)
            else:
                current.continue_with(form.target, payload)
        return {target.row.pk}

    def done(self, count: int) -> str:
        return ngettext("%(count)s job completed.", "%(count)s jobs completed.", count) % {"count": localize(count)}

    def entry(self, form: Any) -> Any:
        if form.target is None:
            return _("Completed.")
        return format_lazy(_("Completed, and continued with {type}."), type=form.target.name)


def declared(type_name: str) -> JobType[Any, Any] | None:
    """Return the job type, or None if no app declares it any more."""
    try:
        return get_registry().job_type(type_name)
    except JobTypeNotFound:
        return None


def names_continuations(type_name: str) -> bool:
    """Return whether the job type says what its jobs may continue with."""
    own = declared(type_name)
    return own is not None and own.continues_with is not None


def continuations(type_name: str) -> dict[str, JobType[Any, Any]]:
    """Return the types that a job of this type may continue with, by name.

    Types with ``entry=False`` are among them only if the job's own type names them in ``continues_with``.
    """
    own, known = declared(type_name), get_registry().job_types()
    if own is None or own.continues_with is None:
        return {name: job_type for name, job_type in known.items() if job_type.entry}
    return {name: job_type for name, job_type in known.items() if name in own.continues_with}
