from django.db import migrations

from django_jobchains.db.online_migrations import OnlineMigration
from django_jobchains.models import chain_view


class Migration(OnlineMigration):
    dependencies = [
        ("django_jobchains", "0005_admin_indexes"),
    ]

    operations = [
        # Without it the view shows a role what row-level security hides from it in the job table.
        migrations.RunPython(chain_view.set_invoker, chain_view.reset_invoker, elidable=False),
    ]
