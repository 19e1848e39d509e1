from django.db import models

from django_jobchains.db.online_migrations import AddIndexOnline, OnlineMigration


class Migration(OnlineMigration):
    #: PostgreSQL builds indexes concurrently outside of transactions only.
    atomic = False
    dependencies = [
        ("django_jobchains", "0013_chain_queue"),
    ]

    operations = [
        AddIndexOnline(
            model_name="job",
            index=models.Index(fields=["queue", "chain_id", "chain_index"], name="jobchains_queue"),
        ),
        AddIndexOnline(
            model_name="job",
            index=models.Index(
                condition=models.Q(("status", "failed")),
                fields=["queue", "chain_id", "chain_index"],
                name="jobchains_failed_queue",
            ),
        ),
    ]
