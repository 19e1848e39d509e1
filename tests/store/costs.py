"""What a call's statements cost the database, counted by it: the same again and again, on any machine."""

from collections.abc import Callable
from typing import Any

from django.db import connection

from tests.store.plans import plans


def cost_of(call: Callable[[], Any]) -> int:
    return pages_of(call) if connection.vendor == "postgresql" else steps_of(call)


def pages_of(call: Callable[[], Any]) -> int:
    """PostgreSQL: pages of tables and indexes that were looked at, each time they were."""
    with plans() as found:
        call()
    return sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in found)


def steps_of(call: Callable[[], Any]) -> int:
    """SQLite: times that its machine came round a loop."""
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
