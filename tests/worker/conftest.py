from tests.support.worker_processes import heeded_hang_ups, start_process
from tests.support.workers import events, make_worker, processors, registry, start_worker, store

__all__ = (
    "events",
    "heeded_hang_ups",
    "make_worker",
    "processors",
    "registry",
    "start_process",
    "start_worker",
    "store",
)
