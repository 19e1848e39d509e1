"""The worker: keeps slots busy with due jobs until it is told to stop."""

from django_jobchains.worker.worker import Worker

__all__ = ("Worker",)
