from tests.attempts.conftest import no_wake_ups, processors

__all__ = ("no_wake_ups", "processors")
