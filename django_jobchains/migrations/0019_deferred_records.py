import django.db.models.deletion
from django.db import migrations, models

from django_jobchains.db.online_migrations import OnlineMigration


class Migration(OnlineMigration):
    """Let deferred writes belong to a record instead of a job."""

    dependencies = [
        ("django_jobchains", "0018_logged_at"),
    ]

    operations = [
        migrations.AlterField(
            "deferredwrite",
            "job",
            models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="django_jobchains.job",
            ),
        ),
        migrations.AlterField(
            "deferredwrite",
            "kind",
            models.CharField(
                choices=[("lease", "Lease"), ("outcome", "Outcome"), ("cancel", "Cancel"), ("record", "Record")],
                max_length=10,
            ),
        ),
    ]
