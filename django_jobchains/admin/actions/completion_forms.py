"""The forms that complete a job: with an output, with the input of the next job, or as its type's own form does."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.actions.action import Refused
from django_jobchains.admin.actions.forms import ActionForm
from django_jobchains.admin.actions.payload_forms import PayloadForm, add_problems, written
from django_jobchains.chains import CurrentJob
from django_jobchains.exceptions import InvalidInput, InvalidOutput
from django_jobchains.payloads import Codec, check_size
from django_jobchains.registry.job_types import JobType
from django_jobchains.statuses import OPEN


class CompleteForm(PayloadForm):
    """The output of one job, or of several jobs of one type."""

    #: The jobs that the page showed. A chain that has continued with another job is skipped.
    job = forms.Field(widget=forms.MultipleHiddenInput)
    #: The type of the next job; empty to end the chain.
    type = forms.CharField(widget=forms.HiddenInput, required=False, strip=False)
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
