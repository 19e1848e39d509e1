"""How long the chaos tests last. The environment variable ``JOBCHAINS_CHAOS_SECONDS`` makes them longer."""

import os

#: None: each test has its own duration.
SECONDS = float(os.environ["JOBCHAINS_CHAOS_SECONDS"]) if "JOBCHAINS_CHAOS_SECONDS" in os.environ else None


def lasting(seconds: float) -> float:
    """Return the duration of a test in seconds: from the environment, or else this default."""
    return SECONDS or seconds
