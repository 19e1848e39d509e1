"""A transient pool starts a process for each use, which ends with it."""

import pytest

from django_jobchains.pools import ChildPool, ChildSession, PoolTimeout, TransientPool
from django_jobchains.testing.contracts.concurrency import until
from tests.children.conftest import FUNCTIONS, is_running

pytestmark = pytest.mark.usefixtures("each_way_to_start")


def test_every_use_has_a_process_that_ends_with_it() -> None:
    pool: ChildPool = TransientPool()
    pids = []
    for _ in range(2):
        with ChildSession(pool) as child:
            assert child.run(f"{FUNCTIONS}:count") == 1
            assert child.level == "transient"
            pids.append(child.pid)
            assert (pool.size, pool.is_full(), pool.is_saturated()) == (0, False, False)
    assert pids[0] != pids[1]
    until(lambda: not any(map(is_running, pids)))


def test_a_session_without_a_pool_is_transient() -> None:
    with ChildSession() as child:
        assert child.run(f"{FUNCTIONS}:echo", 1) == 1
        pid = child.pid
    until(lambda: not is_running(pid))


def test_what_a_function_has_started_ends_with_its_process() -> None:
    with ChildSession() as child:
        grandchild = child.run(f"{FUNCTIONS}:start_grandchild")
        assert is_running(grandchild)
    until(lambda: not is_running(grandchild))


def test_acquire_gives_up_at_its_timeout() -> None:
    with pytest.raises(PoolTimeout):
        TransientPool(setup=f"{FUNCTIONS}:hang_in_set_up").acquire(timeout=0.5)
