import django.db.models.deletion
from django.db import migrations, models

from django_jobchains.db.online_migrations import OnlineMigration


class Migration(OnlineMigration):
    dependencies = [
        ("django_jobchains", "0007_key_locks"),
    ]

    operations = [
        migrations.CreateModel(
            name="DeferredWrite",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[("lease", "Lease"), ("outcome", "Outcome"), ("cancel", "Cancel")], max_length=10
                    ),
                ),
                ("lease_number", models.PositiveIntegerField(default=0)),
                ("leased_until", models.DateTimeField(null=True)),
                ("outcome", models.JSONField(null=True)),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="django_jobchains.job",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["job"], name="jobchains_deferred")],
            },
        ),
    ]
