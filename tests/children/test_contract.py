"""The built-in pools fulfil the contract of pools."""

import pytest

from django_jobchains.pools import ChildPool, Isolation, ReusablePool, TransientPool
from django_jobchains.testing.contracts import PoolContract

pytestmark = pytest.mark.usefixtures("each_way_to_start")


class TestReusablePool(PoolContract):
    def make(self) -> ChildPool:
        return ReusablePool(2, grace_seconds=0.5, strict=True)


class TestTransientPool(PoolContract):
    keeps_children = False

    def make(self) -> ChildPool:
        return TransientPool.of(Isolation("transient", max_workers=2, grace_seconds=0.5, strict=True))
