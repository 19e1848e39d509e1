from tests.support.tracing import recorded
from tests.support.workers import events, make_worker, processors, registry, start_worker, store

__all__ = ("events", "make_worker", "processors", "recorded", "registry", "start_worker", "store")
