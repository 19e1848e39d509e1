from django.db import migrations

from django_jobchains.db.online_migrations import OnlineMigration


class Migration(OnlineMigration):
    dependencies = [
        ("django_jobchains", "0008_deferred_writes"),
    ]

    # These change the state only, and run no SQL.
    operations = [
        migrations.AlterModelOptions(
            name="attemptcount",
            options={
                "base_manager_name": "objects",
                "default_permissions": (),
                "verbose_name": "attempt count",
                "verbose_name_plural": "attempt counts",
            },
        ),
        migrations.AlterModelOptions(
            name="chain",
            options={
                "base_manager_name": "objects",
                "default_permissions": ("view", "delete"),
                "managed": False,
                "verbose_name": "chain",
                "verbose_name_plural": "chains",
            },
        ),
        migrations.AlterModelOptions(
            name="deferredwrite",
            options={"base_manager_name": "objects", "default_permissions": ()},
        ),
        migrations.AlterModelOptions(
            name="failedattempt",
            options={
                "base_manager_name": "objects",
                "default_permissions": (),
                "verbose_name": "failed attempt",
                "verbose_name_plural": "failed attempts",
            },
        ),
        migrations.AlterModelOptions(
            name="job",
            options={
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "permissions": (
                    ("complete_job", "Can complete jobs and continue chains"),
                    ("retry_job", "Can retry jobs"),
                    ("cancel_job", "Can cancel chains"),
                    ("run_job", "Can run jobs now and reschedule them"),
                    ("enqueue_job", "Can enqueue chains"),
                    ("view_payload", "Can view inputs, outputs, errors and logs"),
                ),
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
        migrations.AlterModelOptions(
            name="jobblocker",
            options={
                "base_manager_name": "objects",
                "default_permissions": (),
                "verbose_name": "blocker",
                "verbose_name_plural": "blockers",
            },
        ),
        migrations.AlterModelOptions(
            name="jobprogress",
            options={
                "base_manager_name": "objects",
                "default_permissions": (),
                "verbose_name": "progress",
                "verbose_name_plural": "progress",
            },
        ),
        migrations.AlterModelOptions(
            name="keylock",
            options={"base_manager_name": "objects", "default_permissions": ()},
        ),
        migrations.AlterModelOptions(
            name="logline",
            options={
                "base_manager_name": "objects",
                "default_permissions": (),
                "verbose_name": "log line",
                "verbose_name_plural": "log lines",
            },
        ),
        migrations.AlterModelOptions(
            name="queuestate",
            options={
                "base_manager_name": "objects",
                "default_permissions": ("view", "change"),
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
            },
        ),
        migrations.AlterModelOptions(
            name="workerpresence",
            options={
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
            },
        ),
    ]
