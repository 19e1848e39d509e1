from django.db import migrations, models

from django_jobchains.db.online_migrations import OnlineMigration


class Migration(OnlineMigration):
    dependencies = [
        ("django_jobchains", "0014_queue_indexes"),
    ]

    operations = [
        # An encoded text is longer than the text. PostgreSQL changes the column's type without reading the rows.
        migrations.AlterField(
            model_name="jobprogress",
            name="text",
            field=models.TextField(verbose_name="text"),
        ),
    ]
