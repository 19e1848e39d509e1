"""Pools of child processes, in which functions that crash, leak memory or hang do no harm to the calling process."""

from django_jobchains.children import presets
from django_jobchains.children.call_loop import current_signal, send
from django_jobchains.children.pool import ChildPool, ChildSession, ReusablePool, StreamedCall, TransientPool
from django_jobchains.children.pooled_child import PENDING, Call, PooledChild
from django_jobchains.exceptions import (
    ChildCrashed,
    ChildStartFailed,
    ChildTimeout,
    PoolClosed,
    PoolKeyConflict,
    PoolTimeout,
    RemoteError,
)
from django_jobchains.isolation import Fallback, Isolation

# Elsewhere, pools of child processes are known as worker pools. These are the same classes.
WorkerPool = ChildPool
WorkerSession = ChildSession
PooledWorker = PooledChild
WorkerCrashed = ChildCrashed
WorkerTimeout = ChildTimeout

__all__ = (
    "PENDING",
    "Call",
    "ChildCrashed",
    "ChildPool",
    "ChildSession",
    "ChildStartFailed",
    "ChildTimeout",
    "Fallback",
    "Isolation",
    "PoolClosed",
    "PoolKeyConflict",
    "PoolTimeout",
    "PooledChild",
    "PooledWorker",
    "RemoteError",
    "ReusablePool",
    "StreamedCall",
    "TransientPool",
    "WorkerCrashed",
    "WorkerPool",
    "WorkerSession",
    "WorkerTimeout",
    "current_signal",
    "presets",
    "send",
)
