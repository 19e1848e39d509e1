"""``records``: cancels, requeues or retries records, by the name of their worker and their primary keys."""

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.db.models import QuerySet

from django_jobchains import records
from django_jobchains.cli import converters
from django_jobchains.cli.subcommand import Invocation, Subcommand, batches, check_known, in_batches, report_changes
from django_jobchains.declare.registry import get_registry
from django_jobchains.records.declarations import RecordType
from django_jobchains.values import did_you_mean


class Operation(NamedTuple):
    """``participle``: the word in "3 records retried". ``reason``: why some were not changed."""

    change: Callable[..., int]
    participle: str
    reason: str


OPERATIONS = {
    "cancel": Operation(
        records.cancel, "cancelled", "only queued, errored and processing records can be cancelled, and only once"
    ),
    "requeue": Operation(
        records.requeue, "requeued", "only failed, errored, cancelled and processing records can be requeued"
    ),
    "retry": Operation(records.retry, "retried", "only failed, errored and cancelled records can be retried"),
}


class RecordsCommand(Subcommand):
    name = "records"
    help = "cancels, requeues or retries records; the handlers of records in process are asked to stop"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("operation", choices=OPERATIONS, metavar="OPERATION", help="cancel, requeue or retry")
        parser.add_argument("type", metavar="TYPE", help="name of a record worker, such as uploads.upload")
        parser.add_argument(
            "keys", nargs="+", metavar="KEY", help="primary keys; - reads them from stdin, one per line"
        )
        parser.add_argument(
            "--after", type=converters.time, metavar="TIME", help="requeue: when they may be processed (now)"
        )

    def run(self, call: Invocation) -> None:
        change, participle, reason = OPERATIONS[call["operation"]]
        if call["after"] is not None:
            if change is not records.requeue:
                raise CommandError("--after is an option of 'records requeue'.", returncode=2)
            change = partial(change, after=call["after"])
        kind = _record_type(call["type"], call.using)
        keys = _keys(kind, call["keys"])
        found = {key for batch in batches(keys) for key in _rows(kind, batch, call.using).values_list("pk", flat=True)}
        check_known(f"{kind.model.__qualname__} with the primary key", keys, found)
        changed = sum(in_batches(keys, participle, call.screen, lambda batch: change(_rows(kind, batch, call.using))))
        report_changes(call.screen, len(keys), changed, "record", participle, reason, changed)


def _record_type(name: str, using: str) -> RecordType:
    found = {kind.name: kind for kind in get_registry().record_types()}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise CommandError(
            f"No record worker {name!r}.{did_you_mean(name, found)} Is its app in INSTALLED_APPS, with a jobs module? "
            f"Known: {known}."
        )
    if not found[name].is_in(using):
        raise CommandError(f"The records of {name!r} are not in the database {using!r}: pass another --database.")
    return found[name]


def _keys(kind: RecordType, given: Sequence[str]) -> list[Any]:
    """Return each primary key once, in order. ``-`` stands for the lines of standard input."""
    texts = [text for part in given for text in (sys.stdin.read().splitlines() if part == "-" else [part])]
    keys = list(dict.fromkeys(_key(kind, text) for text in texts if text))
    if not keys:
        raise CommandError("No primary keys were given.")
    return keys


def _key(kind: RecordType, text: str) -> Any:
    field: Any = kind.model._meta.pk
    try:
        return field.clean(text, None)
    except ValidationError as error:
        problem = " ".join(error.messages)
        raise CommandError(
            f"{text!r} is not a primary key of {kind.model.__qualname__}: {problem}", returncode=2
        ) from error


def _rows(kind: RecordType, keys: Sequence[Any], using: str) -> QuerySet[Any]:
    return kind.model._base_manager.using(using).filter(pk__in=keys)
