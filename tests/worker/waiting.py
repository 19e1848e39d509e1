"""Waits for what other threads and processes do: a condition with a deadline, never a sleep for luck."""

from django_jobchains.models import Chain
from django_jobchains.testing.contracts.waiting import stays, until

__all__ = ("stays", "until", "until_completed")


def until_completed(chain: Chain, seconds: float | None = None, what: object = "") -> None:
    until(lambda: chain.refresh().status == "completed", seconds, what or (lambda: vars(chain.current_job)))
