from tests.attempts.conftest import processors
from tests.support.attempts import no_wake_ups

__all__ = ("no_wake_ups", "processors")
