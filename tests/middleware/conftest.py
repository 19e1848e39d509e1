from tests.attempts.conftest import _no_wake_ups, processors, work
from tests.support.workers import events, make_worker, registry, start_worker

__all__ = ("_no_wake_ups", "events", "make_worker", "processors", "registry", "start_worker", "work")
