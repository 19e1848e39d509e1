from collections.abc import Callable

import pytest
from django.test import Client

from django_jobchains.store import Beat, Store, get_store
from tests.store.jobs import claim, create, failed_try

Beating = Callable[..., None]


@pytest.fixture
def store(db: None) -> Store:
    return get_store()


@pytest.fixture
def viewer(staff: Callable[..., Client]) -> Client:
    """May view the pages, and payloads."""
    return staff("view_payload")


@pytest.fixture
def operator(staff: Callable[..., Client]) -> Client:
    """May view the pages, and change queues."""
    return staff("change_queuestate")


@pytest.fixture
def beat(store: Store) -> Beating:
    """A worker that tells; of what is not said something likely."""

    def tell(worker: str = "main:1:a", **changes: object) -> None:
        likely = {
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
        store.beat(Beat(worker=worker, **{**likely, **changes}))  # type: ignore[arg-type]

    return tell


def fail(store: Store, type_name: str = "shop.declined", queue: str = "default", error: str = "Boom: no") -> None:
    """Lets one new job fail; the type has no other."""
    create(store, 1, type_name, queue=queue)
    store.fail([failed_try(job, error=error) for job in claim(store, types=[type_name])])
