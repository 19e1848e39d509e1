"""The worker, which runs due jobs until it is stopped."""

from django_jobchains.worker.worker import Worker

__all__ = ("Worker",)
