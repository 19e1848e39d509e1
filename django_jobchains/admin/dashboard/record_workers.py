"""The table of record workers whose models the user may see."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.apps import apps
from django.contrib.admin import AdminSite
from django.urls import reverse

from django_jobchains.admin.dashboard.tables import MAX_ROWS, Table
from django_jobchains.monitoring import RecordFacts
from django_jobchains.text.humanize import age, number


@dataclass(frozen=True)
class RecordWorkerRow:
    """A record worker. ``url`` is the address of the list of its records, or "" if the site has none."""

    name: str
    model: str
    url: str
    queued: str
    oldest: str
    processing: str
    errored: str
    failed: str
    workers: str
    is_unserved: bool


def record_worker_table(
    records: Sequence[RecordFacts], workers: Mapping[str, int], site: AdminSite
) -> Table[RecordWorkerRow]:
    """Return the table. ``workers`` has the number of live workers by the name of a type or record worker."""

    def row(kind: RecordFacts) -> RecordWorkerRow:
        served = workers.get(kind.name, 0)
        return RecordWorkerRow(
            name=kind.name,
            model=str(apps.get_model(kind.model)._meta.verbose_name_plural),
            url=_url(kind.model, site),
            queued=count_of(kind, kind.queued),
            oldest=age(kind.oldest_seconds) if kind.oldest_seconds else "",
            processing=count_of(kind, kind.processing),
            errored=count_of(kind, kind.errored),
            failed=count_of(kind, kind.failed),
            workers=number(served),
            is_unserved=bool(kind.queued and not served),
        )

    counted = [kind for kind in records if not kind.problem]
    return Table(tuple(map(row, counted[:MAX_ROWS])), max(0, len(counted) - MAX_ROWS))


def count_of(kind: RecordFacts, records: int) -> str:
    """Return a number of records, with a plus sign if counting stopped at the limit."""
    return f"{number(records)}+" if records >= kind.count_to else number(records)


def _url(label: str, site: AdminSite) -> str:
    model = apps.get_model(label)
    if not site.is_registered(model):
        return ""
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
    return reverse(name, current_app=site.name)
