from tests.attempts.conftest import _no_wake_ups, processors

__all__ = ("_no_wake_ups", "processors")
