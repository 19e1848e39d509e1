"""The form of the dashboard that pauses, resumes and limits queues."""

from dataclasses import dataclass
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.text import format_lazy
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_jobchains import queues
from django_jobchains.text.humanize import number
from django_jobchains.values import QUEUE

MAX_SLOTS = 2**31 - 1


@dataclass(frozen=True)
class QueueChange:
    """A change of a queue. ``slots`` is used by ``limit``, where None removes the limit."""

    verb: str
    queue: str
    slots: int | None

    def apply(self, using: str) -> None:
        if self.verb == "pause":
            queues.pause(self.queue, using=using)
        elif self.verb == "resume":
            queues.resume(self.queue, using=using)
        else:
            queues.set_limit(self.queue, self.slots, using=using)

    def success_message(self) -> str:
        if self.verb == "pause":
            text = gettext("Queue %(name)s was paused. Running jobs continue, and no other jobs are started.")
            return text % {"name": self.queue}
        if self.verb == "resume":
            return gettext("Queue %(name)s was resumed.") % {"name": self.queue}
        if self.slots is None:
            return gettext("The limit of queue %(name)s was removed.") % {"name": self.queue}
        text = ngettext(
            "Queue %(name)s was limited to %(count)s slot per worker.",
            "Queue %(name)s was limited to %(count)s slots per worker.",
            self.slots,
        )
        return text % {"name": self.queue, "count": number(self.slots)}

    def log_message(self) -> Any:
        """Return the lazy message of the log entry, which names the queue itself."""
        if self.verb == "pause":
            return _("Paused.")
        if self.verb == "resume":
            return _("Resumed.")
        if self.slots is None:
            return _("Limit removed.")
        text = ngettext_lazy("Limited to {count} slot per worker.", "Limited to {count} slots per worker.", self.slots)
        return format_lazy(text, count=self.slots)


class QueueChangeForm(forms.Form):
    # Names may begin or end with spaces.
    queue = forms.CharField(label=_("queue"), strip=False)
    verb = forms.ChoiceField(
        label=_("action"), choices=(("pause", _("pause")), ("resume", _("resume")), ("limit", _("limit")))
    )
    slots = forms.IntegerField(label=_("slots"), required=False, min_value=1, max_value=MAX_SLOTS)

    def clean_queue(self) -> str:
        try:
            return QUEUE.check("queue", self.cleaned_data["queue"])
        except ValueError as error:
            raise ValidationError(_("Enter a queue name of 1 to 100 printable characters.")) from error

    def change(self) -> QueueChange:
        return QueueChange(**self.cleaned_data)

    def error_message(self) -> str:
        field, problems = next(iter(self.errors.items()))
        names = {"field": self.fields[field].label, "problem": problems[0]}
        return gettext("Nothing was changed. %(field)s: %(problem)s") % names
