"""An idle worker uses almost no CPU with Redis and with NATS."""

import pytest

from tests.worker.test_idle import test_idle_worker_uses_almost_no_cpu, types

__all__ = ("test_idle_worker_uses_almost_no_cpu", "types")

pytestmark = pytest.mark.slow


@pytest.fixture
def listeners(broker):
    return broker.threads
