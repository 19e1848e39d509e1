from collections.abc import Callable

import pytest

from django_jobchains.store.workers import Beat
from tests.support.jobs import claim, create, failed_try

Beating = Callable[..., None]


@pytest.fixture
def viewer(staff):
    """A client of a user who may view pages and payloads."""
    return staff("view_payload")


@pytest.fixture
def operator(staff):
    """A client of a user who may view pages and change queues."""
    return staff("change_queuestate")


@pytest.fixture
def beat(store):
    """Return a function that stores a heartbeat of a worker, with defaults for values that are not given."""

    def store_heartbeat(worker: str = "main:1:a", **changes: object) -> None:
        defaults = {
            "host": "web-1",
            "pid": 7,
            "version": "1.0",
            "slots": 10,
            "busy": 3,
            "stuck": 0,
            "queues": None,
            "type_names": ("shop.ship", "shop.mail"),
            "is_stopping": False,
            "up_seconds": 120.0,
            "heartbeat_seconds": 10.0,
        }
        store.workers.beat(Beat(id=worker, **{**defaults, **changes}))

    return store_heartbeat


def fail(store, type_name="shop.declined", queue="default", error="Boom: no"):
    """Create a job that fails, the only one of its type."""
    create(store, 1, type_name, queue=queue)
    store.attempts.fail([failed_try(job, error=error) for job in claim(store, types=[type_name])])
