"""The business tables. Except for primary keys no column is unique, so that what happened twice is visible."""

from uuid import uuid4

from django.db import models
from django.db.models import Q

from django_jobchains.records import JobRecord


class Order(models.Model):
    """What a request has ordered, in the transaction that enqueued the chain.

    ``step``: how far people have come who cancel and retry its chain. ``is_mended``: its handler no longer fails.
    """

    id = models.UUIDField(primary_key=True, default=uuid4)
    kind = models.CharField(max_length=20)
    key = models.CharField(max_length=50, default="")
    chain_id = models.UUIDField(null=True)
    step = models.IntegerField(default=0)
    is_mended = models.BooleanField(default=False)

    class Meta:
        indexes = [models.Index(fields=["kind", "step"], condition=Q(step__lt=2), name="soak_order_step")]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class Effect(models.Model):
    """What an attempt has done for an order. ``seen``: the tokens of the attempts whose results it has received."""

    order_id = models.UUIDField()
    what = models.CharField(max_length=20)
    job_id = models.UUIDField()
    token = models.CharField(max_length=50)
    seen = models.CharField(max_length=200, default="")

    def __str__(self) -> str:
        return f"{self.what} of {self.order_id}"


class Parcel(JobRecord):
    """A record that is a job."""

    order_id = models.UUIDField()
    depot = models.CharField(max_length=20)

    class Meta(JobRecord.Meta):
        indexes = [
            *JobRecord.Meta.indexes,
            models.Index(
                fields=["depot", "state", "process_after", "queued_at"],
                condition=Q(state__in=["queued", "errored"]),
                name="soak_parcel_turns",
            ),
        ]


class Letter(JobRecord):
    """A record whose starts have a rate."""

    order_id = models.UUIDField()
