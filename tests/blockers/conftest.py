from collections.abc import Iterator

import pytest

from tests.attempts.conftest import _no_wake_ups, processors, work
from tests.store.conftest import store
from tests.store.connections import end_all

__all__ = ("_no_wake_ups", "processors", "store", "work")


@pytest.fixture(autouse=True)
def _no_actor_survives() -> Iterator[None]:
    yield
    end_all()
