from django.db import migrations, models

from django_jobchains.db.online_migrations import OnlineMigration


class Migration(OnlineMigration):
    dependencies = [
        ("django_jobchains", "0016_timeouts"),
    ]

    operations = [
        migrations.AddField("workerpresence", "pools", models.JSONField(null=True, verbose_name="pools")),
    ]
