"""Who did what: in the admin's own log, and as a record of the logger ``django_jobchains``."""

from collections.abc import Callable, Sequence
from logging import getLogger
from typing import Any

from django.conf import settings
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import router, transaction
from django.db.models import Model
from django.http import HttpRequest
from django.utils import translation

from django_jobchains.conf import get_settings
from django_jobchains.texts import printable

logger = getLogger("django_jobchains")


def log(request: HttpRequest, rows: Sequence[Model], message: Any, *, verb: str, flag: int = CHANGE) -> None:
    """Writes one entry for each row, in the transaction of the change or, in another database, after its commit.

    Call it in the transaction that makes the change. ``message`` is a sentence without payloads, translated lazily if
    it is: the log is in the language of the site, whoever acts. ``flag`` is one of ``LogEntry``'s.
    """
    if not rows:
        return
    using = get_settings().DATABASE
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
    """Prepared now: a deleted row may have no key any more after the commit."""
    user, verb, model = _one_line(request.user.pk), _one_line(verb), rows[0]._meta.model_name
    ids = [_one_line(row.pk) for row in rows]
    facts = {"user": user, "verb": verb, "model": model, "ids": ids}

    def record() -> None:
        text = f"Admin acted: user={user}, verb={verb}, {model}={', '.join(ids)}"
        logger.info(text, extra={"event": "AdminActed", "jobchains": facts})

    return record


def _one_line(value: object) -> str:
    """Names of queues, say, must not forge log lines."""
    return printable(str(value))
