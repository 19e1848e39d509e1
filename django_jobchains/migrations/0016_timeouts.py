from django.db import migrations, models

from django_jobchains.db.online_migrations import OnlineMigration


class Migration(OnlineMigration):
    dependencies = [
        ("django_jobchains", "0015_progress_text"),
    ]

    operations = [
        # Only the choices change: no SQL.
        migrations.AlterField(
            model_name="failedattempt",
            name="kind",
            field=models.CharField(
                choices=[("error", "error"), ("timeout", "timeout"), ("crash", "crash")],
                max_length=10,
                verbose_name="kind",
            ),
        ),
    ]
