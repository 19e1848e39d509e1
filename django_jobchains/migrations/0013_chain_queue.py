from django.db import migrations, models

from django_jobchains.db.online_migrations import OnlineMigration
from django_jobchains.models import chain_view


class Migration(OnlineMigration):
    dependencies = [
        ("django_jobchains", "0012_chain_type_index"),
    ]

    operations = [
        # Of the state only: the model is not managed.
        migrations.AddField("chain", "queue", models.CharField(max_length=100, verbose_name="queue")),
        # The reverse keeps the column, because PostgreSQL cannot remove one without dropping the view.
        migrations.RunPython(chain_view.add_columns, migrations.RunPython.noop, elidable=False),
    ]
