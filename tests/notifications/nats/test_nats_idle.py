"""An idle worker uses almost no CPU with the NATS notifier."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_jobchains.notifications import get_notifier
from tests.notifications.nats.processes import jobchains
from tests.support.servers.nats import NatsServer, nats_server
from tests.worker.test_idle import gate, test_idle_worker_uses_almost_no_cpu, types

__all__ = ("gate", "nats_server", "test_idle_worker_uses_almost_no_cpu", "types")

pytestmark = pytest.mark.slow


@pytest.fixture
def listeners(nats_server: NatsServer, settings: Any) -> Iterator[set[str]]:
    settings.JOBCHAINS = jobchains(nats_server.url)
    yield {"nats-default", "nats-default-hints"}
    get_notifier("default").close()
