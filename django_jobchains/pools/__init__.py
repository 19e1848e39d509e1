"""Worker pools: functions that crash, leak or hang run in child processes, where they do no harm."""

from django_jobchains.isolation import Fallback, Isolation
from django_jobchains.pools import presets
from django_jobchains.pools.pool_calls import StreamedCall
from django_jobchains.pools.pool_errors import (
    PoolClosed,
    PoolKeyConflict,
    PoolTimeout,
    RemoteError,
    WorkerCrashed,
    WorkerStartFailed,
    WorkerTimeout,
)
from django_jobchains.pools.pooled_worker import PENDING, Call, PooledWorker
from django_jobchains.pools.reusable_pool import ReusablePool
from django_jobchains.pools.transient_pool import TransientPool
from django_jobchains.pools.worker_session import WorkerPool, WorkerSession

__all__ = (
    "PENDING",
    "Call",
    "Fallback",
    "Isolation",
    "PoolClosed",
    "PoolKeyConflict",
    "PoolTimeout",
    "PooledWorker",
    "RemoteError",
    "ReusablePool",
    "StreamedCall",
    "TransientPool",
    "WorkerCrashed",
    "WorkerPool",
    "WorkerSession",
    "WorkerStartFailed",
    "WorkerTimeout",
    "presets",
)
