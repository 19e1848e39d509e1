"""An idle worker uses almost no CPU with the Redis notifier."""

from collections.abc import Callable

import pytest

from django_jobchains.notifications import get_notifier
from django_jobchains.notifications.redis import RedisNotifier
from tests.support.servers.redis import RedisServer
from tests.worker.test_idle import gate, test_idle_worker_uses_almost_no_cpu, types

__all__ = ("gate", "test_idle_worker_uses_almost_no_cpu", "types")

pytestmark = pytest.mark.slow


@pytest.fixture
def listeners(redis_server: RedisServer, use_redis: Callable[..., None]) -> set[str]:
    use_redis(redis_server.url)
    assert isinstance(get_notifier("default"), RedisNotifier)
    return {"listener-default"}
