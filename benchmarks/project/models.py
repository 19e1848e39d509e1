from typing import ClassVar

from django.db import models


class Effect(models.Model):
    """What a handler writes in ``complete()``."""

    job_id = models.UUIDField()
    value = models.IntegerField()

    objects: ClassVar[models.Manager["Effect"]] = models.Manager()

    def __str__(self) -> str:
        return str(self.job_id)
