from django.db import models

from django_jobchains.records import JobRecord


class Upload(JobRecord):
    pass


class Promise(models.Model):
    """A chain that was enqueued in the same transaction, and the output that it must have in the end, as JSON."""

    chain_id = models.UUIDField()
    output = models.CharField(max_length=100)


class Delivery(models.Model):
    """A row that one side wrote in the transaction that ends a job or a record."""

    key = models.CharField(max_length=100)
    label = models.CharField(max_length=100)
    side = models.CharField(max_length=3)
