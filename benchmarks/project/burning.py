"""A handler's work that keeps a CPU busy. It imports only the standard library, for the peers."""

import time


def burn(seconds: float) -> int:
    """Use this much CPU time in this thread, and return how often the loop ran."""
    end, count = time.thread_time() + seconds, 0
    while time.thread_time() < end:
        count += 1
    return count
