"""Finds the rows that the visits need in a filled database: ids, keys, cursors in the middle of the lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone

from benchmarks.admin.sizes import DAYS, HUB, JOIN, LOOP, STUBBORN, TALKATIVE
from django_jobchains.db.ids import first_id_at
from django_jobchains.models import Chain, Job

#: The number of rows that the actions of one measurement may use.
FOR_ACTIONS = 10_000


@dataclass(frozen=True)
class Places:
    """Special chains, and rows for actions and cursors."""

    single: Chain
    twenty_steps: Chain
    loop: Chain
    hub: Chain
    waiting_join: Chain
    completed_join: Chain
    stubborn: Chain
    talkative: Chain
    failed: Chain
    dependent: Chain
    #: Rows that the actions use up: the newest failed and pending jobs, and old completed chains.
    failed_jobs: Sequence[UUID]
    pending_jobs: Sequence[UUID]
    completed_chains: Sequence[UUID]
    key: str
    #: Cursors of pages far from the first one, in the lists of all chains and of all jobs.
    chain_cursor: str
    job_cursor: str

    @classmethod
    def find(cls) -> "Places":
        failed = Chain.objects.with_status("failed").select_related("current_job").page(limit=100).items
        keyed = Job.objects.filter(chain_index=0, deduplication_key__isnull=False).order_by("-chain_id")
        return cls(
            single=_with_steps(1),
            twenty_steps=_with_steps(20),
            loop=_first(LOOP),
            hub=_first(HUB),
            waiting_join=_first(JOIN, "blocked"),
            completed_join=_first(JOIN, "completed"),
            stubborn=_first(STUBBORN),
            talkative=_first(TALKATIVE),
            failed=failed[0],
            dependent=Chain.objects.with_status("blocked").order_by("id").page(limit=1).items[0],
            failed_jobs=_ids(Job.objects.filter(status="failed").order_by("-chain_id", "-chain_index")),
            pending_jobs=_ids(Job.objects.filter(status="pending").order_by("-chain_id", "-chain_index")),
            completed_chains=_ids(Chain.objects.filter(status="completed").order_by("id")),
            key=str(keyed.values_list("deduplication_key", flat=True)[0]),
            chain_cursor=_cursor(Chain, "id"),
            job_cursor=_cursor(Job, "chain_id"),
        )


def _ids(rows: QuerySet[Any]) -> Sequence[UUID]:
    return list(rows.values_list("pk", flat=True)[:FOR_ACTIONS])


def _first(type_name: str, *statuses: str) -> Chain:
    chains = Chain.objects.of_type(type_name).select_related("current_job")
    return (chains.with_status(*statuses) if statuses else chains).page(limit=1).items[0]


def _with_steps(count: int) -> Chain:
    """Return one of the newest completed chains with that number of steps."""
    completed = Chain.objects.with_status("completed").select_related("current_job").page(limit=1_000)
    return next(chain for chain in completed if chain.current_job.chain_index == count - 1)


def _cursor(model: Any, column: str) -> str:
    """Return a cursor far from the first page, at a third of the days."""
    place = first_id_at(timezone.now() - timedelta(days=DAYS / 3))
    cursor = model.objects.filter(**{f"{column}__lt": place}).page(limit=1).next_cursor
    assert cursor is not None
    return str(cursor)
