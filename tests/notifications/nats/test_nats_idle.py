"""An idle worker uses almost no CPU with the NATS notifier."""

import pytest

from django_jobchains.notifications import get_notifier
from tests.notifications.nats.processes import jobchains
from tests.support.servers.nats import nats_server
from tests.worker.test_idle import gate, test_idle_worker_uses_almost_no_cpu, types

__all__ = ("gate", "nats_server", "test_idle_worker_uses_almost_no_cpu", "types")

pytestmark = pytest.mark.slow


@pytest.fixture
def listeners(nats_server, settings):
    settings.JOBCHAINS = jobchains(nats_server.url)
    yield {"nats-default", "nats-default-hints"}
    get_notifier("default").close()
