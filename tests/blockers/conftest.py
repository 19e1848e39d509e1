from tests.attempts.conftest import _no_wake_ups, processors, work
from tests.store.conftest import _end_actors, store

__all__ = ("_end_actors", "_no_wake_ups", "processors", "store", "work")
