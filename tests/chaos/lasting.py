"""How long chaos lasts. ``JOBCHAINS_CHAOS_SECONDS`` in the environment makes it longer than in a run of the suite."""

import os

#: None: as long as each test says.
SECONDS = float(os.environ["JOBCHAINS_CHAOS_SECONDS"]) if "JOBCHAINS_CHAOS_SECONDS" in os.environ else None


def lasting(seconds: float) -> float:
    """The seconds a test goes on for, if nothing else is asked for."""
    return SECONDS or seconds
