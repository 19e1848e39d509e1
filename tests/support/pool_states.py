"""A pool of child processes, as a worker reports it."""

from django_jobchains.store.workers import PoolState

POOL = PoolState(
    level="process",
    key="images",
    workers=2,
    busy=1,
    max_workers=4,
    is_saturated=False,
    cannot_start=False,
    is_weakened=False,
    rss_bytes=120 * 1024**2,
    largest_rss_bytes=70 * 1024**2,
    recycled=3,
    crashed=1,
    killed=5,
)
