from tests.support.workers import events, make_worker, processors, registry, start_worker, store

__all__ = ("events", "make_worker", "processors", "registry", "start_worker", "store")
