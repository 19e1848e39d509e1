from django.db import migrations, models

from django_jobchains.db.online_migrations import OnlineMigration

MODELS = ("logline", "jobprogress")


class Migration(OnlineMigration):
    """Rename the attribute of two models. The column keeps its name, which workers of older versions write."""

    dependencies = [
        ("django_jobchains", "0017_worker_pools"),
    ]

    operations = [
        *(
            migrations.AlterField(model, "said_at", models.DateTimeField("said at", db_column="said_at"))
            for model in MODELS
        ),
        *(migrations.RenameField(model, "said_at", "logged_at") for model in MODELS),
        *(
            migrations.AlterField(model, "logged_at", models.DateTimeField("logged at", db_column="said_at"))
            for model in MODELS
        ),
    ]
