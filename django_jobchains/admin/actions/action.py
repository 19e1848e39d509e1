"""An action on chains, jobs or records that users confirm on a page, its result, and the record of a change.

Changes are recorded as log entries of the admin, and as records of the logger ``django_jobchains``.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging import getLogger
from typing import Any, ClassVar

from django.conf import settings
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import router, transaction
from django.db.models import Model
from django.http import HttpRequest
from django.utils import translation
from django.utils.formats import localize
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.actions.forms import ActionForm
from django_jobchains.conf import current_database
from django_jobchains.text.errors import printable
from django_jobchains.text.humanize import some_of

NOT_ALLOWED = _("not allowed")
NOT_THERE = _("no longer exists")
HAS_CHANGED = _("changed in the meantime")
#: The number of different reasons that are reported.
MAX_REASONS = 10


class Refused(Exception):
    """Nothing was changed, for the reason in the message."""


class Action:
    """An action that users perform on rows.

    A target is an object with the primary key of its row in ``pk``. ``model_admin`` is the ``ConfirmedActions``.
    """

    #: Used in URLs and as the name of the changelist action.
    name: ClassVar[str]
    label: ClassVar[Any]
    #: The statuses of rows that the action changes; of records, their states.
    statuses: ClassVar[Collection[str]]
    #: Shown above the button.
    help_text: ClassVar[Any] = ""
    #: Shown afterwards, with the ``number`` of changed rows for its plural, and as a ``count`` in the user's format.
    success_text: ClassVar[Any]
    #: The message of the log entry.
    log_text: ClassVar[Any]
    form: ClassVar[type[ActionForm]] = ActionForm
    template: ClassVar[str] = "confirm"
    #: The number of rows that can be selected.
    max_rows: ClassVar[int] = 500
    is_dangerous: ClassVar[bool] = False
    #: The action flag of the log entry.
    flag: ClassVar[int] = CHANGE

    def refusal_of(self, request: HttpRequest, target: Any) -> Any:
        """Return why the action cannot be performed on a target, considering a form that was sent; empty if it can."""
        raise NotImplementedError

    def refusal_together(self, targets: Sequence[Any]) -> Any:
        """Return why the action cannot be performed on all of these together; empty if it can."""
        return ""

    def is_offered(self, target: Any) -> bool:
        """Return whether the row's page has a button for the action, if the action can be performed."""
        return True

    def is_awaited(self, target: Any) -> bool:
        """Return whether the row waits for somebody to perform the action, whose button is then the first one."""
        return False

    def make_form(self, model_admin: Any, request: HttpRequest, targets: Sequence[Any], data: Any) -> ActionForm:
        """Return the form of the confirmation page; ``data`` is None when the page is first shown."""
        return self.form(data)

    def preview(self, model_admin: Any, request: HttpRequest, targets: Sequence[Any]) -> dict[str, Any]:
        """Return additional context for the template of the confirmation page."""
        return {}

    def expand(self, model_admin: Any, request: HttpRequest, targets: Sequence[Any], form: Any) -> Sequence[Any]:
        """Return everything that the action changes. Raise ``Refused`` if that is not allowed."""
        return targets

    def success_message(self, count: int) -> str:
        return str(self.success_text % {"number": count, "count": localize(count)})

    def log_message(self, form: Any) -> Any:
        """Return the message of the log entry."""
        return self.log_text


@dataclass
class ActionResult:
    """The changed rows, the skipped keys by reason, and in ``problem`` the reason why nothing was changed at all."""

    changed: Sequence[Any] = ()
    skipped: dict[str, list[Any]] = field(default_factory=dict)
    problem: str = ""

    def skip(self, reason: Any, keys: Iterable[Any]) -> None:
        if keys := list(keys):
            self.skipped.setdefault(str(reason), []).extend(keys)

    def show(self, request: HttpRequest, action: Action) -> None:
        """Add a message about the changed rows, and one for each reason why rows were skipped."""
        if self.problem:
            messages.error(request, gettext("Nothing was changed: %(reason)s.") % {"reason": self.problem.rstrip(".")})
        if self.changed:
            messages.success(request, action.success_message(len(self.changed)))
        for reason, keys in list(self.skipped.items())[:MAX_REASONS]:
            text = ngettext(
                "%(count)s row skipped: %(reason)s (%(names)s).",
                "%(count)s rows skipped: %(reason)s (%(names)s).",
                len(keys),
            )
            names = {"count": localize(len(keys)), "reason": reason, "names": some_of(keys)}
            messages.warning(request, text % names)


logger = getLogger("django_jobchains")


def log_change(
    request: HttpRequest,
    rows: Sequence[Model],
    message: Any,
    *,
    verb: str,
    flag: int = CHANGE,
    using: str | None = None,
) -> None:
    """Add a log entry for each row. Call it in the transaction of the change.

    If the log is in another database, the entries are written after the commit. ``message`` must not contain payloads.
    It may be lazy, and is translated to the language of the site. ``flag`` is an action flag of ``LogEntry``, and
    ``using`` the database of the rows, by default the database of the jobs.
    """
    if not rows:
        return
    using = using or current_database()
    record = _record(request, rows, verb)
    with translation.override(settings.LANGUAGE_CODE):
        text = str(message)

    def write_entries() -> None:
        LogEntry.objects.log_actions(request.user.pk, rows, flag, text)  # type: ignore[arg-type]  # any sequence does

    if router.db_for_write(LogEntry) == using:
        write_entries()
    else:
        transaction.on_commit(write_entries, using=using, robust=True)
    transaction.on_commit(record, using=using, robust=True)


def _record(request: HttpRequest, rows: Sequence[Model], verb: str) -> Callable[[], None]:
    """Prepare the log record now, because a deleted row has no key after the commit."""
    # Names of queues, for example, must not forge log lines.
    user, verb, *ids = (printable(str(value)) for value in (request.user.pk, verb, *(row.pk for row in rows)))
    model = rows[0]._meta.model_name
    fields = {"user": user, "verb": verb, "model": model, "ids": ids}
    extra = {"event": "AdminActed", "jobchains": fields}
    return partial(logger.info, "Admin acted: user=%s, verb=%s, %s=%s", user, verb, model, ", ".join(ids), extra=extra)
