"""Rows of workers for ``status``, ``health`` and ``top``."""

from typing import Any

from django_jobchains.store import Store
from django_jobchains.store.workers import Beat


def worker(store: Store, name: str = "mail:7:abc", **changes: Any) -> None:
    beat: dict[str, Any] = {
        "id": name,
        "host": "host",
        "pid": 7,
        "version": "0.1.0",
        "slots": 10,
        "busy": 3,
        "stuck": 0,
        "queues": None,
        "type_names": ("shop.plain", "shop.charge"),
        "is_stopping": False,
        "up_seconds": 7_300.0,
        "heartbeat_seconds": 10.0,
    }
    store.workers.beat(Beat(**{**beat, **changes}))
