"""The costs of a call's statements, counted by the database: the same on every machine and in every run."""

from collections.abc import Callable
from typing import Any

from django.db import connection

from tests.support.plans import plans


def cost_of(call: Callable[[], Any]) -> int:
    return pages_of(call) if connection.vendor == "postgresql" else steps_of(call)


def pages_of(call: Callable[[], Any]) -> int:
    """Return how often pages of tables and indexes are read on PostgreSQL."""
    with plans() as found:
        call()
    return sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in found)


def steps_of(call: Callable[[], Any]) -> int:
    """Return how many steps SQLite's virtual machine takes."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    connection.connection.set_progress_handler(count, 1)
    try:
        call()
    finally:
        connection.connection.set_progress_handler(None, 0)
    return steps
