"""Records changes as log entries of the admin, and as records of the logger ``django_jobchains``."""

from collections.abc import Callable, Sequence
from functools import partial
from logging import getLogger
from typing import Any

from django.conf import settings
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import router, transaction
from django.db.models import Model
from django.http import HttpRequest
from django.utils import translation

from django_jobchains.conf import get_settings
from django_jobchains.text.errors import printable

logger = getLogger("django_jobchains")


def log(
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
    using = using or get_settings().DATABASE
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
