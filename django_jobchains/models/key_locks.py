"""The rows by which transactions on PostgreSQL lock deduplication keys."""

from django.db import models

from django_jobchains.pages import JobTablesQuerySet


class KeyLock(models.Model):
    """A deduplication key that was used lately. A row carries no truth and may be deleted while nobody has it locked.

    A transaction that enqueues with a key inserts its row, or locks it, until its end. SQLite has one writer at a time
    and no rows here. See docs/decisions/0027-key-rows.md.
    """

    #: ``deduplication.lock_id`` of the chain type and the key.
    id = models.BigIntegerField(primary_key=True)
    #: When a chain was last created for the key. A transaction with an older snapshot fails when it locks the row.
    used_at = models.DateTimeField()

    objects = JobTablesQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()
        indexes = (models.Index(fields=["used_at"], name="jobchains_key_used"),)

    def __str__(self) -> str:
        return str(self.id)
