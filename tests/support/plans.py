"""The plans of the statements of a store call, from PostgreSQL's ``auto_explain``."""

import json
from contextlib import contextmanager
from typing import Any

from django.db import connection

from tests.store.backlog import TABLES

Plan = dict[str, Any]

#: How many rows may be read for each wanted row, in addition to some for each group.
ROWS_FOR_GROUPS = 200
#: PostgreSQL's default for ``jit_above_cost``.
COMPILED_ABOVE = 100_000


def use_plans(mode):
    """Set the plans of this transaction: ``auto``, or ``force_generic_plan`` as for prepared statements."""
    with connection.cursor() as cursor:
        cursor.execute("LOAD 'auto_explain'")
        cursor.execute("SELECT set_config('plan_cache_mode', %s, true)", [mode])


@contextmanager
def plans():
    """Record the plans of the statements in the block, with the rows that they read."""
    found = []

    def note(notice):
        text = notice.message_primary or ""
        if "plan:" in text:
            found.append(json.loads(text[text.index("{") :])["Plan"])

    connection.ensure_connection()
    connection.connection.add_notice_handler(note)
    options = {"log_min_duration": 0, "log_analyze": True, "log_timing": False, "log_buffers": True}
    options |= {"log_level": "notice", "log_format": "json"}
    with connection.cursor() as cursor:
        for name, value in options.items():
            cursor.execute(f"SET LOCAL auto_explain.{name} = {value}")
    try:
        yield found
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL auto_explain.log_min_duration = -1")
        connection.connection.remove_notice_handler(note)


def nodes(plan):
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def plan_of(call):
    """Return every node of the plans of a call's statements."""
    with plans() as found:
        call()
    assert found, "auto_explain has reported no plan."
    return [node for plan in found for node in nodes(plan)]


def rows_read(node):
    return float((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])


def rows_compared(node):
    """Return the number of pairs that a join compared in vain."""
    return node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"]


def indexes_of(found):
    return {node["Index Name"] for node in found if "Index Name" in node}


def assert_reads_little(found, wanted):
    """Check that there is no sequential scan, and that few unwanted rows are read, sorted or compared."""
    scans = [node for node in found if node.get("Relation Name") in TABLES]
    sorts = [node for node in found if "Sort" in node["Node Type"]]
    most = wanted * 2 + ROWS_FOR_GROUPS
    wrong = [node for node in scans + sorts if node["Node Type"] == "Seq Scan" or rows_read(node) > most]
    wrong += [node for node in found if rows_compared(node) > most]
    assert not wrong, [
        (node["Node Type"], node.get("Relation Name"), node.get("Index Name"), rows_read(node)) for node in wrong
    ]


def cost_of(call):
    """Return the cost of a call's statements as the database counts it, which is the same on every machine.

    On PostgreSQL, how often pages of tables and indexes are read; on SQLite, the steps of its virtual machine.
    """
    if connection.vendor == "postgresql":
        with plans() as found:
            call()
        return sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in found)
    steps = []
    connection.connection.set_progress_handler(lambda: steps.append(None), 1)
    try:
        call()
    finally:
        connection.connection.set_progress_handler(None, 0)
    return len(steps)


def estimated_cost_of(call):
    """Return the highest cost that PostgreSQL expects of a call's statements. If it is high, it compiles them."""
    with plans() as found:
        call()
    return max(plan["Total Cost"] for plan in found)
