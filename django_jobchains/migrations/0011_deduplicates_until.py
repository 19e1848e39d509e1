from django.db import migrations, models

from django_jobchains.db.online_migrations import OnlineMigration


class Migration(OnlineMigration):
    dependencies = [
        ("django_jobchains", "0010_reschedules"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="deduplicates_until",
            field=models.DateTimeField(null=True, verbose_name="deduplicates until"),
        ),
    ]
