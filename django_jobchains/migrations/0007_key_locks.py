from django.db import migrations, models

from django_jobchains.db.online_migrations import OnlineMigration
from django_jobchains.db.storage_parameters import SetUnlogged


class Migration(OnlineMigration):
    dependencies = [
        ("django_jobchains", "0006_chain_view_security_invoker"),
    ]

    operations = [
        migrations.CreateModel(
            name="KeyLock",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("used_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["used_at"], name="jobchains_key_used")],
            },
        ),
        # Its rows mean nothing once the transactions that locked them have ended, so a crash may empty the table.
        SetUnlogged("KeyLock"),
    ]
