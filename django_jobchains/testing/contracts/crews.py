"""Calls on threads of their own, all at once, with connections of their own."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from django.db import connections

Value = TypeVar("Value")

#: Nothing a contract asks for takes as long: whoever does hangs.
DEADLINE_SECONDS = 20.0


def at_once(calls: Sequence[Callable[[], Value]]) -> list[Value]:
    """Makes the calls at the same time; what they returned, or the first error."""
    barrier = threading.Barrier(len(calls))
    futures: list[Future[Value]] = [Future() for _ in calls]
    for call, future in zip(calls, futures, strict=True):
        threading.Thread(target=_run, args=(call, future, barrier), name="contract", daemon=True).start()
    return [future.result(DEADLINE_SECONDS) for future in futures]


def _run(call: Callable[[], Value], future: "Future[Value]", barrier: threading.Barrier) -> None:
    try:
        barrier.wait(DEADLINE_SECONDS)
        value = call()
    except BaseException as error:
        connections.close_all()
        future.set_exception(error)
    else:
        connections.close_all()
        future.set_result(value)
