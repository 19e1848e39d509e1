"""The action that completes jobs with an output or with the next step of their chains, and its forms."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.module_loading import import_string
from django.utils.text import format_lazy
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_jobchains import chains
from django_jobchains.admin.actions.action import Refused
from django_jobchains.admin.actions.forms import ActionForm, NextTypeForm, PayloadForm, add_problems, written
from django_jobchains.admin.actions.job_action import HAS_CONTINUED, Check, JobAction, JobTarget
from django_jobchains.chains import CurrentJob
from django_jobchains.declare.job_types import JobType
from django_jobchains.declare.registry import get_registry
from django_jobchains.exceptions import InvalidInput, InvalidOutput
from django_jobchains.payloads.strict_json import check_size
from django_jobchains.payloads.types import Codec
from django_jobchains.statuses import OPEN
from django_jobchains.text.humanize import some_of


class CompleteAction(JobAction):
    """Complete one job, or several of one type with the same output or the same next type and input."""

    name = "complete"
    label = _("Complete")
    permission = "complete_job"
    statuses = OPEN
    help_text = _(
        "Completes the job with the output that you enter, or continues the chain. If a worker is running the job, it "
        "is notified and its result is discarded."
    )
    success_text = ngettext_lazy("%(count)s job completed.", "%(count)s jobs completed.", "number")
    template = "complete"
    #: Each row takes several statements.
    max_rows = 100
    is_one_by_one = True

    def is_awaited(self, target: JobTarget) -> bool:
        """A job of a type without a processor is completed by people or programs."""
        job_type = declared(target.job.type_name)
        return job_type is not None and job_type.processor is None

    def refusal_of(self, request: HttpRequest, target: JobTarget) -> Any:
        """Refuse a chain that has continued since the page showed its job."""
        shown = request.POST.getlist("job")
        has_continued = bool(shown) and str(target.job.id) not in shown
        return super().refusal_of(request, target) or (HAS_CONTINUED if has_continued else "")

    def refusal_together(self, targets: Sequence[JobTarget]) -> Any:
        types = sorted({target.job.type_name for target in targets})
        if len(types) > 1:
            text = gettext("the jobs have different types (%(types)s), select jobs of one type")
            return text % {"types": some_of(types)}
        if len(targets) > 1 and completion_form(types[0]):
            return gettext("jobs of the type %(type)s have their own form, select one job") % {"type": types[0]}
        return ""

    def make_form(self, model_admin: Any, request: HttpRequest, targets: Sequence[JobTarget], data: Any) -> ActionForm:
        job_type, shown = declared(targets[0].job.type_name), [target.job.id for target in targets]
        output_codec = job_type.output_codec if job_type else Codec()
        if form_class := completion_form(targets[0].job.type_name):
            own = form_class(data, prefix=CustomForm.PREFIX, job=targets[0].job, request=request)
            return CustomForm(data, own=own, shown=shown, codec=output_codec)
        if chosen := self._type_form(model_admin, request, targets).chosen:
            return ContinueForm(data, shown=shown, target=get_registry().job_type(chosen))
        return CompleteForm(data, shown=shown, codec=output_codec)

    def preview(self, model_admin: Any, request: HttpRequest, targets: Sequence[JobTarget]) -> dict[str, Any]:
        target = targets[0]
        payloads = model_admin.visibility(request).payloads(target.row, target.job)
        return {
            "job": target.job,
            "is_declared": declared(target.job.type_name) is not None,
            "type_form": self._type_form(model_admin, request, targets),
            "input": payloads.json(target.job.input) if len(targets) == 1 else None,
        }

    def _type_form(self, model_admin: Any, request: HttpRequest, targets: Sequence[JobTarget]) -> NextTypeForm:
        """Offer the types that all of the chains may continue with.

        A POST request takes the chosen type from its data: in the URL of a list, the same parameter is a filter.
        """
        allowed = set(continuations(targets[0].job.type_name))
        for target in targets:
            allowed &= model_admin.next_types(request, target.job).keys()
        return NextTypeForm(request.POST if request.method == "POST" else request.GET, allowed)

    def perform(self, targets: Sequence[JobTarget], form: Any, check: Check) -> Collection[UUID]:
        [target] = targets
        with chains.current_job(target.chain_id) as current:
            job = current.job
            if job.id != target.job.id:
                raise Refused(HAS_CONTINUED)
            if problem := self.refusal(job):
                raise Refused(problem)
            form.complete(current)
        return {target.pk}

    def log_message(self, form: Any) -> Any:
        if not form.target_name:
            return _("Completed.")
        return format_lazy(_("Completed, and continued with {type}."), type=form.target_name)


def declared(type_name: str) -> JobType[Any, Any] | None:
    """Return the job type, or None if no app declares it."""
    return get_registry().find(type_name)


def completion_form(type_name: str) -> Any:
    """Return the form class that the type names for its completion, or None."""
    job_type = declared(type_name)
    named = job_type.completion_form if job_type else None
    return import_string(named) if isinstance(named, str) else named


def continuations(type_name: str) -> dict[str, JobType[Any, Any]]:
    """Return the types that a job of this type may continue with, by name.

    Types with ``entry=False`` are only included if the job's type names them in ``continues_with``. Types with required
    blockers are not, because the page has no fields for blockers.
    """
    current, types = declared(type_name), get_registry().job_types()
    known = {name: job_type for name, job_type in types.items() if not job_type.blocker_slots}
    if current is None or current.continues_with is None:
        return {name: job_type for name, job_type in known.items() if job_type.entry}
    return {name: job_type for name, job_type in known.items() if name in current.continues_with}


class CompleteForm(PayloadForm):
    """The output of one job, or of several jobs of one type."""

    #: The jobs that the page showed. A chain that has continued with another job is skipped.
    job = forms.Field(widget=forms.MultipleHiddenInput)
    #: The type of the next job; empty to end the chain. It has no id, because the choice of the type has the same one.
    type = forms.CharField(widget=forms.HiddenInput({"id": False}), required=False, strip=False)
    #: The name of the type to continue with; empty to end the chain.
    target_name = ""

    def __init__(self, *args: Any, shown: Sequence[UUID], **options: Any) -> None:
        options = {"error": InvalidOutput, "json_label": _("Output, as JSON"), "legend": _("Output"), **options}
        super().__init__(*args, **options)
        self.initial.update(job=shown, type=self.target_name)

    def complete(self, current: CurrentJob) -> None:
        """Complete the locked job."""
        current.finish(self.cleaned_data["payload"])

    def clean_type(self) -> str:
        """Reject a type that is no longer allowed, so that what was meant as an input does not end the chain."""
        name: str = self.cleaned_data["type"]
        if name != self.target_name:
            problem = gettext(
                "The chain can no longer continue with this type. Choose another type or enter an output."
            )
            raise ValidationError(problem)
        return name


class ContinueForm(CompleteForm):
    """The input of the next job, instead of an output."""

    def __init__(self, *args: Any, target: JobType[Any, Any], **options: Any) -> None:
        self._target, self.target_name = target, target.name
        legend, label = _("Input of the next step"), _("Input of the next step, as JSON")
        super().__init__(
            *args, codec=target.input_codec, error=InvalidInput, json_label=label, legend=legend, **options
        )

    def complete(self, current: CurrentJob) -> None:
        current.continue_with(self._target, self.cleaned_data["payload"])


class CustomForm(ActionForm):
    """The ``completion_form`` of a job type, in ``own``, with the job that the page showed."""

    PREFIX = "completion"

    job = forms.Field(widget=forms.MultipleHiddenInput)
    target_name = ""

    def __init__(self, *args: Any, own: Any, shown: Sequence[UUID], codec: Codec, **options: Any) -> None:
        super().__init__(*args, **options)
        self.own, self._codec = own, codec
        own.required_css_class = getattr(own, "required_css_class", self.required_css_class)
        self.initial.update(job=shown)

    @property
    def media(self) -> forms.Media:
        media: forms.Media = super().media + self.own.media
        return media

    def is_valid(self) -> bool:
        if not (super().is_valid() and self.own.is_valid()):
            return False
        if not hasattr(self.own, "complete"):
            self._decode_output()
        return not self.own.errors

    def _decode_output(self) -> None:
        for name, value in list(self.own.cleaned_data.items()):
            try:
                written(value)
            except TypeError as error:
                problem = gettext(
                    "This value cannot be written as JSON: %(problem)s. Give the form a method complete(), or let its "
                    "clean() return values that can be written as JSON."
                )
                field = name if name in self.own.fields else None
                self.own.add_error(field, ValidationError(problem, params={"problem": error}))
        if self.own.errors:
            return
        text = written(self.own.cleaned_data)
        try:
            check_size(text, InvalidOutput)
            self._output = self._codec.decode(text, InvalidOutput)
        except InvalidOutput as problem:
            add_problems(self.own, problem, {name: name for name in self.own.fields})

    def add_error(self, field: str | None, error: Any) -> None:
        self.own.add_error(field, error)

    def complete(self, current: CurrentJob) -> None:
        """Let the form complete the locked job, and find out whether it has continued the chain."""
        if not hasattr(self.own, "complete"):
            current.finish(self._output)
            return
        before = current.job
        self.own.complete(current)
        after = current.job
        if after.id != before.id:
            self.target_name = after.type_name
        elif after.status in OPEN:
            raise Refused(gettext("the form did not complete the job"))
