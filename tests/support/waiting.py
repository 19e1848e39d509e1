"""Wait for other threads and processes: for a condition with a deadline, never for a fixed time."""

from django_jobchains.testing.contracts.concurrency import stays, until

__all__ = ("stays", "until", "until_completed")


def until_completed(chain, seconds=None, what=""):
    until(lambda: chain.refresh().status == "completed", seconds, what or (lambda: vars(chain.current_job)))
