"""The rows that the statements of a page read, according to PostgreSQL."""

from collections.abc import Callable
from dataclasses import dataclass

from django.db import connection

from django_jobchains.models import (
    AttemptCount,
    FailedAttempt,
    Job,
    JobBlocker,
    JobProgress,
    LogLine,
    QueueState,
    WorkerPresence,
)
from tests.support.plans import Plan, plan_of, rows_read, use_plans

#: Tables that grow with the jobs.
LARGE = tuple(model._meta.db_table for model in (Job, JobBlocker, FailedAttempt, LogLine, JobProgress, AttemptCount))
TABLES = (*LARGE, *(model._meta.db_table for model in (QueueState, WorkerPresence)))


@dataclass(frozen=True)
class Reading:
    """What a call reads.

    ``scans`` are nodes that read a whole large table. ``rows`` and ``sorted_rows`` are the largest numbers of rows that
    one node of a plan reads from a table, or sorts.
    """

    scans: list[str]
    rows: float
    sorted_rows: float
    plan: str


def reading_of(call: Callable[[], object]) -> Reading:
    use_plans("auto")
    with connection.cursor() as cursor:
        # PostgreSQL prefers to scan small tables. If it may not, the only scans that remain have no usable index.
        cursor.execute("SET LOCAL enable_seqscan = off")
    # Estimates are statements that are planned but not executed.
    found = [node for node in plan_of(call) if "Actual Rows" in node]
    sorts = [rows_read(child) for node in found if "Sort" in node["Node Type"] for child in node["Plans"]]
    return Reading(
        [_text(node) for node in found if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE],
        max((rows_read(node) for node in found if node.get("Relation Name") in LARGE), default=0),
        max(sorts, default=0),
        "\n".join(map(_text, found)),
    )


def _text(node: Plan) -> str:
    names = ("Node Type", "Relation Name", "Alias", "Index Name", "Index Cond", "Filter", "Sort Key")
    return f"{' '.join(str(node[name]) for name in names if name in node)} ({rows_read(node):.0f} rows)"
