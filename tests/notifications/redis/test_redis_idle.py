"""An idle worker uses almost no CPU with the Redis notifier."""

import pytest

from django_jobchains.notifications import get_notifier
from django_jobchains.notifications.redis import RedisNotifier
from tests.worker.test_idle import gate, test_idle_worker_uses_almost_no_cpu, types

__all__ = ("gate", "test_idle_worker_uses_almost_no_cpu", "types")

pytestmark = pytest.mark.slow


@pytest.fixture
def listeners(redis_server, use_redis):
    use_redis(redis_server.url)
    assert isinstance(get_notifier("default"), RedisNotifier)
    return {"listener-default"}
