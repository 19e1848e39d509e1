from django.db import migrations, models

from django_jobchains.db.online_migrations import OnlineMigration


class Migration(OnlineMigration):
    dependencies = [
        ("django_jobchains", "0009_base_managers"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="reschedules",
            field=models.IntegerField(null=True, verbose_name="reschedules"),
        ),
    ]
