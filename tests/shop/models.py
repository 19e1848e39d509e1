from django.db import models


class Effect(models.Model):
    """What a handler has done. No column is unique, so an effect that happened twice is visible."""

    job_id = models.UUIDField()
    label = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.label} by {self.job_id}"
