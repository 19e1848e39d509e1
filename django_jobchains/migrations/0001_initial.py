import django.db.models.deletion
import django.db.models.expressions
from django.db import migrations, models

import django_jobchains.db.ids
import django_jobchains.db.keyset
from django_jobchains.db.online_migrations import RunOnPostgreSQL
from django_jobchains.models import chain_view


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Chain",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("type_name", models.CharField(max_length=200, verbose_name="type")),
                ("input", models.JSONField(null=True, verbose_name="input")),
                ("deduplication_key", models.CharField(max_length=200, null=True, verbose_name="deduplication key")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("blocked", "blocked"),
                            ("pending", "pending"),
                            ("running", "running"),
                            ("completed", "completed"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        max_length=10,
                        verbose_name="status",
                    ),
                ),
                ("output", models.JSONField(null=True, verbose_name="output")),
                ("last_error", models.TextField(null=True, verbose_name="last error")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("queue", models.CharField(max_length=100, verbose_name="queue")),
                ("schedule_name", models.CharField(max_length=100, null=True, verbose_name="schedule")),
                ("scheduled_for", models.DateTimeField(null=True, verbose_name="scheduled for")),
                ("expires_at", models.DateTimeField(null=True, verbose_name="expires at")),
                ("cancel_requested_at", models.DateTimeField(null=True, verbose_name="cancel requested at")),
            ],
            options={
                "verbose_name": "chain",
                "verbose_name_plural": "chains",
                "db_table": "django_jobchains_chain",
                "managed": False,
                "default_permissions": ("view", "delete"),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=django_jobchains.db.ids.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("chain_id", models.UUIDField(verbose_name="chain")),
                ("chain_index", models.PositiveIntegerField(verbose_name="step")),
                ("chain_type_name", models.CharField(max_length=200, verbose_name="chain type")),
                ("type_name", models.CharField(max_length=200, verbose_name="type")),
                ("queue", models.CharField(max_length=100, verbose_name="queue")),
                ("priority", models.SmallIntegerField(default=0, verbose_name="priority")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("blocked", "blocked"),
                            ("pending", "pending"),
                            ("running", "running"),
                            ("completed", "completed"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        max_length=10,
                        verbose_name="status",
                    ),
                ),
                ("run_at", models.DateTimeField(verbose_name="run at")),
                ("attempt", models.PositiveIntegerField(default=0, verbose_name="attempt")),
                ("lease_number", models.PositiveIntegerField(default=0)),
                ("leased_by", models.CharField(max_length=200, null=True, verbose_name="leased by")),
                ("leased_until", models.DateTimeField(null=True, verbose_name="leased until")),
                ("crashes", models.PositiveIntegerField(default=0, verbose_name="crashes")),
                ("max_attempts", models.PositiveIntegerField(null=True, verbose_name="maximum attempts")),
                ("input", models.JSONField(null=True, verbose_name="input")),
                ("output", models.JSONField(null=True, verbose_name="output")),
                ("last_error", models.TextField(null=True, verbose_name="last error")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("last_attempt_at", models.DateTimeField(null=True, verbose_name="last attempt at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("completed_by", models.CharField(max_length=200, null=True, verbose_name="completed by")),
                ("deduplication_key", models.CharField(max_length=200, null=True, verbose_name="deduplication key")),
                ("cancel_requested_at", models.DateTimeField(null=True, verbose_name="cancel requested at")),
                (
                    "on_blocker_failure",
                    models.CharField(
                        choices=[("wait", "wait"), ("fail", "fail"), ("run", "run")],
                        max_length=4,
                        null=True,
                        verbose_name="on blocker failure",
                    ),
                ),
                ("context", models.JSONField(null=True, verbose_name="context")),
                ("reschedules", models.IntegerField(null=True, verbose_name="reschedules")),
                ("deduplicates_until", models.DateTimeField(null=True, verbose_name="deduplicates until")),
                ("schedule_name", models.CharField(max_length=100, null=True, verbose_name="schedule")),
                ("scheduled_for", models.DateTimeField(null=True, verbose_name="scheduled for")),
                ("failed_job_id", models.UUIDField(editable=False, null=True, verbose_name="failed job")),
                ("expires_at", models.DateTimeField(null=True, verbose_name="expires at")),
                ("limit_key", models.BigIntegerField(editable=False, null=True)),
                ("concurrency_key", models.TextField(null=True, verbose_name="concurrency key")),
                ("rate_key", models.TextField(null=True, verbose_name="rate key")),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "running")), fields=["leased_until"], name="jobchains_leased"
                    ),
                    django_jobchains.db.keyset.ListIndex(
                        condition=models.Q(("status", "running"), _negated=True),
                        fields=["status", "chain_id", "chain_index"],
                        name="jobchains_status",
                    ),
                    django_jobchains.db.keyset.ListIndex(
                        condition=models.Q(("status__in", ("completed", "failed", "cancelled"))),
                        fields=["type_name", "chain_id", "chain_index"],
                        name="jobchains_type",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("deduplication_key__isnull", False), ("status__in", ("blocked", "pending", "running"))
                        ),
                        fields=["deduplication_key", "chain_type_name"],
                        name="jobchains_open_key",
                    ),
                    models.Index(
                        condition=models.Q(("chain_index", 0), ("deduplication_key__isnull", False)),
                        fields=["deduplication_key", "chain_type_name", "created_at"],
                        name="jobchains_key",
                    ),
                    models.Index(
                        condition=models.Q(("schedule_name__isnull", False)),
                        fields=["schedule_name", "chain_id", "chain_index"],
                        name="jobchains_schedule",
                    ),
                    models.Index(
                        condition=models.Q(("failed_job_id__isnull", False)),
                        fields=["failed_job_id"],
                        name="jobchains_failed_job",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("expires_at__isnull", False), ("attempt", 0), ("status__in", ("blocked", "pending"))
                        ),
                        fields=["expires_at"],
                        name="jobchains_expiring",
                    ),
                    models.Index(
                        models.F("queue"),
                        models.F("type_name"),
                        models.F("limit_key"),
                        django.db.models.expressions.CombinedExpression(models.F("priority"), "*", models.Value(-1)),
                        models.F("run_at"),
                        models.F("id"),
                        condition=models.Q(("limit_key__isnull", False), ("status", "pending")),
                        name="jobchains_limited",
                    ),
                    models.Index(
                        condition=models.Q(("concurrency_key__isnull", False), ("status", "running")),
                        fields=["concurrency_key"],
                        name="jobchains_counted",
                    ),
                    models.Index(
                        models.F("queue"),
                        models.F("type_name"),
                        django.db.models.expressions.CombinedExpression(models.F("priority"), "*", models.Value(-1)),
                        models.F("run_at"),
                        models.F("id"),
                        models.F("priority"),
                        condition=models.Q(("status", "pending")),
                        name="jobchains_claimable",
                    ),
                    models.Index(
                        condition=models.Q(("status", "failed")),
                        fields=["type_name", "chain_id", "chain_index"],
                        name="jobchains_failed_type",
                    ),
                    models.Index(
                        condition=models.Q(("status", "failed")),
                        fields=["chain_type_name", "chain_id"],
                        name="jobchains_failed_chain",
                    ),
                    django_jobchains.db.keyset.ListIndex(
                        condition=models.Q(("status__in", ("completed", "failed", "cancelled"))),
                        fields=["chain_type_name", "chain_id", "chain_index"],
                        name="jobchains_chain_type",
                    ),
                    django_jobchains.db.keyset.ListIndex(
                        condition=models.Q(("status__in", ("completed", "failed", "cancelled"))),
                        fields=["queue", "chain_id", "chain_index"],
                        name="jobchains_queue",
                    ),
                    models.Index(
                        condition=models.Q(("status", "failed")),
                        fields=["queue", "chain_id", "chain_index"],
                        name="jobchains_failed_queue",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("chain_id", "chain_index"), name="jobchains_one_job_per_step")
                ],
                "default_permissions": ("view",),
                "permissions": (
                    ("complete_job", "Can complete jobs and continue chains"),
                    ("retry_job", "Can retry jobs"),
                    ("cancel_job", "Can cancel chains"),
                    ("run_job", "Can run jobs now and reschedule them"),
                    ("enqueue_job", "Can enqueue chains"),
                    ("view_payload", "Can view inputs, outputs, errors and logs"),
                ),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="FailedAttempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("attempt", models.PositiveIntegerField(verbose_name="attempt")),
                ("lease_number", models.PositiveIntegerField()),
                (
                    "kind",
                    models.CharField(
                        choices=[("error", "error"), ("timeout", "timeout"), ("crash", "crash")],
                        max_length=10,
                        verbose_name="kind",
                    ),
                ),
                ("error", models.TextField(verbose_name="error")),
                ("traceback", models.TextField(verbose_name="traceback")),
                ("worker", models.CharField(max_length=200, verbose_name="worker")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("finished_at", models.DateTimeField(verbose_name="finished at")),
                (
                    "job",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="failed_attempts",
                        to="django_jobchains.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "failed attempt",
                "verbose_name_plural": "failed attempts",
                "constraints": [
                    models.UniqueConstraint(fields=("job", "lease_number"), name="jobchains_one_row_per_attempt")
                ],
                "default_permissions": (),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="JobBlocker",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id", "position", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("position", models.PositiveIntegerField(verbose_name="position")),
                ("is_open", models.BooleanField(verbose_name="open")),
                (
                    "blocker",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="dependent_links",
                        to="django_jobchains.job",
                        verbose_name="blocker",
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="blocker_links",
                        to="django_jobchains.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "blocker",
                "verbose_name_plural": "blockers",
                "indexes": [
                    models.Index(fields=["blocker", "job"], name="jobchains_blocks"),
                    models.Index(condition=models.Q(("is_open", True)), fields=["job"], name="jobchains_open_blocker"),
                ],
                "default_permissions": (),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="QueueState",
            fields=[
                ("name", models.CharField(max_length=100, primary_key=True, serialize=False, verbose_name="name")),
                ("paused_at", models.DateTimeField(null=True, verbose_name="paused at")),
                ("slot_limit", models.PositiveIntegerField(null=True, verbose_name="limit of jobs at once")),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "default_permissions": ("view", "change"),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="LimitOverride",
            fields=[
                ("name", models.CharField(max_length=200, primary_key=True, serialize=False, verbose_name="name")),
                ("concurrency", models.PositiveIntegerField(null=True, verbose_name="concurrency")),
                ("rate", models.PositiveIntegerField(null=True, verbose_name="rate")),
            ],
            options={
                "verbose_name": "limit of all workers",
                "verbose_name_plural": "limits",
                "default_permissions": ("view", "change"),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="WorkerPresence",
            fields=[
                ("id", models.CharField(max_length=200, primary_key=True, serialize=False)),
                ("host", models.CharField(max_length=255, verbose_name="host")),
                ("pid", models.PositiveIntegerField(verbose_name="process")),
                ("version", models.CharField(max_length=50, verbose_name="version")),
                ("slots", models.PositiveIntegerField(verbose_name="slots")),
                ("busy", models.PositiveIntegerField(verbose_name="busy")),
                ("stuck", models.PositiveIntegerField(verbose_name="stuck")),
                ("queues", models.JSONField(null=True, verbose_name="queues")),
                ("type_names", models.JSONField(verbose_name="types")),
                ("types_digest", models.CharField(default="", max_length=32)),
                ("is_stopping", models.BooleanField(verbose_name="stopping")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("heartbeat_at", models.DateTimeField(verbose_name="heartbeat at")),
                ("heartbeat_seconds", models.FloatField(verbose_name="seconds between heartbeats")),
                ("schedules", models.CharField(default="", max_length=32)),
                ("pools", models.JSONField(null=True, verbose_name="pools")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="TaskName",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
            ],
            options={
                "verbose_name": "task name",
                "verbose_name_plural": "task names",
                "indexes": [models.Index(fields=["name"], name="jobchains_task_name")],
                "default_permissions": (),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("name", models.CharField(max_length=100, primary_key=True, serialize=False, verbose_name="name")),
                ("type_name", models.CharField(max_length=200, verbose_name="type")),
                ("input", models.JSONField(null=True, verbose_name="input")),
                ("cron", models.CharField(max_length=200, null=True, verbose_name="cron expression")),
                ("every_seconds", models.FloatField(null=True, verbose_name="seconds between ticks")),
                ("timezone", models.CharField(max_length=64, verbose_name="time zone")),
                (
                    "overlap",
                    models.CharField(
                        choices=[("allow", "allow"), ("skip", "skip"), ("queue", "queue")],
                        max_length=5,
                        verbose_name="overlap",
                    ),
                ),
                (
                    "on_missed",
                    models.CharField(
                        choices=[("run_once", "run once"), ("skip", "skip"), ("run_all", "run all")],
                        max_length=8,
                        verbose_name="on missed",
                    ),
                ),
                ("max_catch_up", models.PositiveIntegerField(verbose_name="maximum catch-up")),
                ("jitter_seconds", models.FloatField(null=True, verbose_name="seconds of jitter")),
                ("queue", models.CharField(max_length=100, null=True, verbose_name="queue")),
                ("priority", models.SmallIntegerField(null=True, verbose_name="priority")),
                (
                    "source",
                    models.CharField(
                        choices=[("code", "code"), ("admin", "admin")], max_length=5, verbose_name="source"
                    ),
                ),
                ("declarations", models.CharField(max_length=32, null=True)),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("anchor_at", models.DateTimeField(verbose_name="anchor")),
                ("paused_at", models.DateTimeField(null=True, verbose_name="paused at")),
                ("next_tick_at", models.DateTimeField(null=True, verbose_name="next tick")),
                ("last_tick_at", models.DateTimeField(null=True, verbose_name="last tick")),
                ("last_chain_id", models.UUIDField(null=True, verbose_name="last chain")),
                ("last_error", models.TextField(null=True, verbose_name="last error")),
                ("last_error_at", models.DateTimeField(null=True, verbose_name="last error at")),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "permissions": (
                    ("pause_schedule", "Can pause and resume schedules"),
                    ("run_schedule", "Can run schedules now"),
                ),
                "indexes": [
                    models.Index(
                        condition=models.Q(("next_tick_at__isnull", False), ("paused_at__isnull", True)),
                        fields=["next_tick_at"],
                        name="jobchains_next_tick",
                    )
                ],
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="AttemptCount",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "span",
                        "starts_at",
                        "type_name",
                        "queue",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("span", models.PositiveIntegerField(choices=[(60, "minute"), (3600, "hour")], verbose_name="span")),
                ("starts_at", models.DateTimeField(verbose_name="starts at")),
                ("type_name", models.CharField(max_length=200, verbose_name="type")),
                ("queue", models.CharField(default="", max_length=100, verbose_name="queue")),
                ("completed", models.PositiveIntegerField(verbose_name="completed")),
                ("failed", models.PositiveIntegerField(verbose_name="failed")),
                ("crashed", models.PositiveIntegerField(default=0, verbose_name="crashed")),
                ("jobs_failed", models.PositiveIntegerField(default=0, verbose_name="failed jobs")),
                ("seconds", models.FloatField(verbose_name="seconds")),
                ("longest_seconds", models.FloatField(verbose_name="longest")),
            ],
            options={
                "verbose_name": "attempt count",
                "verbose_name_plural": "attempt counts",
                "default_permissions": (),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="JobProgress",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="reported_progress",
                        serialize=False,
                        to="django_jobchains.job",
                        verbose_name="job",
                    ),
                ),
                ("lease_number", models.PositiveIntegerField()),
                ("attempt", models.PositiveIntegerField(verbose_name="attempt")),
                ("fraction", models.FloatField(verbose_name="fraction")),
                ("text", models.TextField(verbose_name="text")),
                ("logged_at", models.DateTimeField(verbose_name="logged at")),
            ],
            options={
                "verbose_name": "progress",
                "verbose_name_plural": "progress",
                "default_permissions": (),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="LogLine",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id",
                        "lease_number",
                        "position",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("lease_number", models.PositiveIntegerField()),
                ("position", models.PositiveIntegerField(verbose_name="position")),
                ("attempt", models.PositiveIntegerField(verbose_name="attempt")),
                ("logged_at", models.DateTimeField(verbose_name="logged at")),
                (
                    "level",
                    models.SmallIntegerField(
                        choices=[(10, "debug"), (20, "info"), (30, "warning"), (40, "error"), (50, "critical")],
                        verbose_name="level",
                    ),
                ),
                ("text", models.TextField(verbose_name="text")),
                ("fields", models.JSONField(null=True, verbose_name="fields")),
                (
                    "job",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="log_lines",
                        to="django_jobchains.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "log line",
                "verbose_name_plural": "log lines",
                "default_permissions": (),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="KeyLock",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("used_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["used_at"], name="jobchains_key_used")],
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="RateState",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
                ("full_at", models.BigIntegerField()),
                ("started_at", models.BigIntegerField()),
                ("interval_microseconds", models.BigIntegerField()),
                ("refundable_since", models.BigIntegerField()),
                ("slack", models.BigIntegerField()),
            ],
            options={
                "default_permissions": (),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="DeferredWrite",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("lease", "Lease"),
                            ("outcome", "Outcome"),
                            ("cancel", "Cancel"),
                            ("record", "Record"),
                        ],
                        max_length=10,
                    ),
                ),
                ("lease_number", models.PositiveIntegerField(default=0)),
                ("leased_until", models.DateTimeField(null=True)),
                ("outcome", models.JSONField(null=True)),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="django_jobchains.job",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["job"], name="jobchains_deferred")],
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="Dashboard",
            fields=[],
            options={
                "verbose_name": "dashboard",
                "verbose_name_plural": "dashboard",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("django_jobchains.job",),
        ),
        migrations.RunSQL(chain_view.CREATE, chain_view.DROP),
        # For pages of a chain type: decision 0081. On SQLite, the model's index contains all jobs.
        RunOnPostgreSQL(
            'CREATE INDEX "jobchains_waiting_chain_type" ON "django_jobchains_job" '
            "(chain_type_name, chain_id, chain_index) WHERE status IN ('blocked', 'pending')",
            'DROP INDEX "jobchains_waiting_chain_type"',
        ),
    ]
