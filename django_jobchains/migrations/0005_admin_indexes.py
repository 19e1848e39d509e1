from django.db import models
from django.db.models.expressions import CombinedExpression

from django_jobchains.db.online_migrations import AddIndexOnline, OnlineMigration, ReplaceIndexOnline


class Migration(OnlineMigration):
    #: PostgreSQL builds indexes concurrently outside of transactions only.
    atomic = False
    dependencies = [
        ("django_jobchains", "0004_admin"),
    ]

    operations = [
        ReplaceIndexOnline(
            model_name="job",
            index=models.Index(
                models.F("queue"),
                models.F("type_name"),
                CombinedExpression(models.F("priority"), "*", models.Value(-1)),
                models.F("run_at"),
                models.F("id"),
                models.F("priority"),
                condition=models.Q(("status", "pending")),
                name="jobchains_claimable",
            ),
        ),
        AddIndexOnline(
            model_name="job",
            index=models.Index(
                condition=models.Q(("status", "failed")),
                fields=["type_name", "chain_id", "chain_index"],
                name="jobchains_failed_type",
            ),
        ),
        AddIndexOnline(
            model_name="job",
            index=models.Index(
                condition=models.Q(("status", "failed")),
                fields=["chain_type_name", "chain_id"],
                name="jobchains_failed_chain",
            ),
        ),
    ]
