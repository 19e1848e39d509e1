from django.db import migrations

from django_jobchains.db.online_migrations import OnlineMigration, RunOnPostgreSQL
from django_jobchains.models import chain_view


def set_storage_of_history(table: str, more: str = "") -> RunOnPostgreSQL:
    """Let autovacuum run more often on a table that keeps history, of which only the newest rows change.

    By default it waits until a fifth of all rows has changed, which is two million dead rows beside 10 million kept jobs,
    and it pauses too often to keep up with thousands of jobs in a second.
    """
    return RunOnPostgreSQL(
        f'ALTER TABLE "django_jobchains_{table}" SET (autovacuum_vacuum_scale_factor = 0.05, '
        f"autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_limit = 2000{more})",
        migrations.RunSQL.noop,
    )


class Migration(OnlineMigration):
    """Set what only PostgreSQL has, once: a project may change it afterwards."""

    dependencies = [
        ("django_jobchains", "0001_initial"),
    ]

    operations = [
        # Without it, the view shows a role what row-level security hides from it in the job table.
        migrations.RunPython(chain_view.set_invoker, migrations.RunPython.noop),
        # The fillfactor is not for HOT updates, because claiming, renewing and finishing change indexed columns. Without
        # it, PostgreSQL would write the new versions of rows to many different old pages: see decision 0086.
        set_storage_of_history("job", ", fillfactor = 90"),
        set_storage_of_history("jobblocker"),
        set_storage_of_history("failedattempt"),
        set_storage_of_history("logline"),
        # Progress is updated again and again, and changes no index: with room on its page it needs no vacuum.
        set_storage_of_history("jobprogress", ", fillfactor = 70"),
        # Its rows mean nothing once the transactions that locked them have ended, so a crash may empty the table.
        RunOnPostgreSQL('ALTER TABLE "django_jobchains_keylock" SET UNLOGGED', migrations.RunSQL.noop),
    ]
