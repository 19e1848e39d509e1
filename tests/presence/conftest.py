from tests.worker.fixtures import events, make_worker, processors, registry, start_worker, store
from tests.worker.processes import start_process

__all__ = ("events", "make_worker", "processors", "registry", "start_process", "start_worker", "store")
