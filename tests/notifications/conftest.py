from tests.support.worker_processes import start_process
from tests.support.workers import events, make_worker, processors, registry, start_worker, store

__all__ = ("events", "make_worker", "processors", "registry", "start_process", "start_worker", "store")
