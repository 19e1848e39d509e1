"""Actors that can use another isolation level, and report whether they reached the statement to stop at."""

from collections.abc import Callable
from typing import Any

from django.db import connection

from django_jobchains.store import Store
from tests.support.connections import Actor

READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE = "read committed", "repeatable read", "serializable"


class StepActor(Actor):
    def __init__(self, call: Callable[[Store], Any], *, level: str = READ_COMMITTED, **options: Any) -> None:
        super().__init__(call, **options)
        self._level = level

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def _prepare(self) -> None:
        super()._prepare()
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('default_transaction_isolation', %s, false)", [self._level])


def stopped_before(statement: int, call: Callable[[Store], Any], level: str = READ_COMMITTED) -> StepActor:
    """Return an actor that has stopped before one of its statements, or has ended because it has fewer."""
    actor = StepActor(call, level=level, stops_before=statement)
    actor.start().until_stopped()
    return actor


def waiting(call: Callable[[Store], Any], level: str = READ_COMMITTED) -> StepActor:
    """Return an actor that waits for a lock, or has returned."""
    actor = StepActor(call, level=level)
    actor.start().until_blocked_or_ended()
    return actor
