"""The built-in pools fulfil the contract of pools."""

import pytest

from django_jobchains.pools import Isolation, ReusablePool, TransientPool, WorkerPool
from django_jobchains.testing.contracts import PoolContract

pytestmark = pytest.mark.usefixtures("each_way_to_start")


class TestReusablePool(PoolContract):
    def make(self) -> WorkerPool:
        return ReusablePool(2, grace_seconds=0.5, strict=True)


class TestTransientPool(PoolContract):
    keeps_workers = False

    def make(self) -> WorkerPool:
        return TransientPool.of(Isolation("transient", max_workers=2, grace_seconds=0.5, strict=True))
