"""The pools of this process. They end before the interpreter does, and start without children in a fork of it."""

import atexit
import concurrent.futures.thread  # noqa: F401 - it registers its own function, which must be called after ours
import os
import threading
import weakref
from typing import Protocol

from django_jobchains.children.preload import close_preload


class Closable(Protocol):
    def terminate(self) -> None: ...
    def start_anew(self) -> None:
        """Forget the children, which belong to the process that was forked."""


_pools: "weakref.WeakSet[Closable]" = weakref.WeakSet()


def add_pool(pool: Closable) -> None:
    _pools.add(pool)


def terminate_pools() -> None:
    """End every pool and child, so that no thread waits for one forever."""
    for pool in list(_pools):
        pool.terminate()
    close_preload()


def _start_anew() -> None:
    for pool in list(_pools):
        pool.start_anew()


# Called before the interpreter waits for non-daemon threads, because one of them may wait for a child that hangs.
# ``concurrent.futures`` does the same. An ``atexit`` function is called after that wait, which is too late.
getattr(threading, "_register_atexit", atexit.register)(terminate_pools)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
