from django.db import models


class Effect(models.Model):
    """What a handler writes in ``complete()``."""

    job_id = models.UUIDField()
    value = models.IntegerField()

    def __str__(self) -> str:
        return str(self.job_id)
