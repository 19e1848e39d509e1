"""How a query finds its rows: plans and rows on PostgreSQL, plans and steps of the virtual machine on SQLite."""

from contextlib import contextmanager
from dataclasses import dataclass, field

from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.support.plans import plan_of, rows_read, use_plans

TABLES = ("django_jobchains_job", "django_jobchains_jobblocker", "records_upload")


@dataclass
class Reading:
    #: Nodes that read a whole table.
    scans: list[str] = field(default_factory=list)
    #: The most rows that one node of a plan reads or sorts (PostgreSQL).
    rows: float = 0
    sorted_rows: float = 0
    #: Thousands of steps of the virtual machine (SQLite).
    steps: int = 0
    plan: list[str] = field(default_factory=list)


def reading_of(call, mode="auto"):
    """``mode``: how PostgreSQL plans prepared statements."""
    return _on_sqlite(call) if connection.vendor == "sqlite" else _on_postgresql(call, mode)


def _on_postgresql(call, mode):
    use_plans(mode)
    found = [node for node in plan_of(call) if node["Actual Loops"]]
    return Reading(
        scans=[_text(node) for node in found if node["Node Type"] == "Seq Scan" and node["Relation Name"] in TABLES],
        rows=max(map(rows_read, found)),
        sorted_rows=max((_input(node) for node in found if "Sort" in node["Node Type"]), default=0),
        plan=list(map(_text, found)),
    )


def _input(sort):
    return sum(rows_read(child) for child in sort["Plans"])


def _text(node):
    names = ("Node Type", "Alias", "Index Name", "Index Cond", "Filter", "Sort Key")
    return f"{' '.join(str(node[name]) for name in names if name in node)} ({rows_read(node):.0f} rows)"


def _on_sqlite(call):
    with CaptureQueriesContext(connection) as queries, _counted() as steps:
        call()
    plan = [line for query in queries for line in _plan(query["sql"])]
    tables = (*TABLES, "root", "last", "step")
    scans = [line for line in plan if line.startswith("SCAN") and line.split()[1] in tables and "INDEX" not in line]
    return Reading(scans=scans, steps=len(steps), plan=plan)


@contextmanager
def _counted():
    """Count steps: the list gets an entry for each thousand."""
    steps = []
    connection.ensure_connection()
    connection.connection.set_progress_handler(lambda: steps.append(1), 1_000)
    try:
        yield steps
    finally:
        connection.connection.set_progress_handler(None, 0)


def _plan(sql):
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN QUERY PLAN " + sql.replace("%", "%%"), ())
        rows = cursor.fetchall()
    return [str(row[3]) for row in rows]
