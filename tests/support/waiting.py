"""Wait for other threads and processes: for a condition with a deadline, never for a fixed time."""

from django_jobchains.models import Chain
from django_jobchains.testing.contracts.concurrency import stays, until

__all__ = ("stays", "until", "until_completed")


def until_completed(chain: Chain, seconds: float | None = None, what: object = "") -> None:
    until(lambda: chain.refresh().status == "completed", seconds, what or (lambda: vars(chain.current_job)))
