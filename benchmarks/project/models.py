from typing import ClassVar

from django.db import models

from django_jobchains.records import JobRecord


class Effect(models.Model):
    """The row that a handler writes in ``complete()``."""

    job_id = models.UUIDField()
    value = models.IntegerField()

    objects: ClassVar[models.Manager["Effect"]] = models.Manager()

    def __str__(self) -> str:
        return str(self.job_id)


class Import(JobRecord):
    """A record without additional columns."""

    objects: ClassVar[models.Manager["Import"]] = models.Manager()
