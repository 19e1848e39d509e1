"""What the dashboard's forms say about a queue: pause it, resume it, limit its slots."""

from dataclasses import dataclass
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.text import format_lazy
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_jobchains import queues
from django_jobchains.admin.words import number
from django_jobchains.job_types import checked_queue

MOST_SLOTS = 2**31 - 1


@dataclass(frozen=True)
class QueueChange:
    """``slots`` belongs to ``limit``; None is no limit."""

    verb: str
    queue: str
    slots: int | None

    def make(self, using: str) -> None:
        if self.verb == "pause":
            queues.pause(self.queue, using=using)
        elif self.verb == "resume":
            queues.resume(self.queue, using=using)
        else:
            queues.set_limit(self.queue, self.slots, using=using)

    def told(self) -> str:
        """For who did it."""
        if self.verb == "pause":
            text = gettext("Queue %(name)s is paused: what runs goes on, and nothing else starts.")
            return text % {"name": self.queue}
        if self.verb == "resume":
            return gettext("Queue %(name)s is open again.") % {"name": self.queue}
        if self.slots is None:
            return gettext("Queue %(name)s has no limit.") % {"name": self.queue}
        text = ngettext(
            "Queue %(name)s is limited to %(count)s slot of each worker.",
            "Queue %(name)s is limited to %(count)s slots of each worker.",
            self.slots,
        )
        return text % {"name": self.queue, "count": number(self.slots)}

    def logged(self) -> Any:
        """For the admin's log, where the queue stands beside it; in the language of whoever reads it first."""
        if self.verb == "pause":
            return _("Paused.")
        if self.verb == "resume":
            return _("Resumed.")
        if self.slots is None:
            return _("Limit removed.")
        text = ngettext_lazy(
            "Limited to {count} slot of each worker.", "Limited to {count} slots of each worker.", self.slots
        )
        return format_lazy(text, count=self.slots)


class QueueChangeForm(forms.Form):
    # A queue is known by each letter of its name, blanks at its ends too.
    queue = forms.CharField(label=_("queue"), strip=False)
    verb = forms.ChoiceField(
        label=_("action"), choices=(("pause", _("pause")), ("resume", _("resume")), ("limit", _("limit")))
    )
    slots = forms.IntegerField(label=_("slots"), required=False, min_value=1, max_value=MOST_SLOTS)

    def clean_queue(self) -> str:
        try:
            return checked_queue(self.cleaned_data["queue"])
        except ValueError as error:
            raise ValidationError(_("This is no name of a queue: 1 to 100 printable characters.")) from error

    def change(self) -> QueueChange:
        """Of a valid form."""
        return QueueChange(**self.cleaned_data)

    def refusal(self) -> str:
        """The first of what is wrong."""
        field, problems = next(iter(self.errors.items()))
        names = {"field": self.fields[field].label, "problem": problems[0]}
        return gettext("Nothing was changed. %(field)s: %(problem)s") % names
