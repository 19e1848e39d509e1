from django.db import models

from django_jobchains.db.online_migrations import OnlineMigration, ReplaceIndexOnline


class Migration(OnlineMigration):
    #: PostgreSQL builds indexes concurrently outside of transactions only.
    atomic = False
    dependencies = [
        ("django_jobchains", "0011_deduplicates_until"),
    ]

    operations = [
        ReplaceIndexOnline(
            model_name="job",
            index=models.Index(fields=["chain_type_name", "chain_id", "chain_index"], name="jobchains_chain_type"),
        ),
    ]
