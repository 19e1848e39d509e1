"""A backup is restored into a new server, where workers continue with what it contains."""

from collections import Counter
from datetime import timedelta

import pytest
from django.db import connections, transaction
from django.db.models import F
from django.utils import timezone

from django_jobchains import Deduplicate, chains, schedules, use_database
from django_jobchains.models import FailedAttempt, Job, Schedule
from django_jobchains.processors import get_registry
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.servers import Unavailable
from tests.support.servers.cluster import (
    ALIAS,
    Server,
    binaries,
    cluster,
    connected,
    reconnect,
    server,
    start_process,
)
from tests.support.servers.programs import or_skip
from tests.support.waiting import until
from tests.support.worker_app import jobs
from tests.support.worker_processes import started_processes

__all__ = ("cluster", "server", "start_process")

RESTORED = "restored"


@pytest.fixture
def programs():
    with or_skip():
        if found := binaries("pg_dump", "pg_restore", "pg_basebackup"):
            return found
        raise Unavailable("PostgreSQL's server programs are missing, with pg_dump, pg_restore and pg_basebackup")


@pytest.fixture
def target(programs):
    """A new server that has not been started."""
    server = Server(programs)
    yield server
    server.remove()


class Dump:
    """``pg_dump`` of the database into a file, and ``pg_restore`` of the file."""

    def __init__(self, cluster, target):
        self._cluster, self._target = cluster, target
        self._file = cluster.directory / "dump"

    def begin(self):
        """Begin the backup."""
        self._target.run("pg_dump", "--format=custom", f"--file={self._file}", f"--dbname={self._cluster.url}postgres")

    def mark(self):
        """Choose the point of time to which the backup is restored."""

    def restore(self):
        self._target.start()
        self._target.run("pg_restore", "--exit-on-error", f"--dbname={self._target.url}postgres", str(self._file))


class PointInTime:
    """A base backup, an archive of the log, and a restore up to a point of time."""

    def __init__(self, cluster, target):
        self._cluster, self._target = cluster, target
        self._archive = cluster.directory / "archive"
        self._archive.mkdir(mode=0o777)
        self._archive.chmod(0o777)
        execute("ALTER SYSTEM SET archive_mode = on")
        execute(f"ALTER SYSTEM SET archive_command = 'cp %p {self._archive}/%f'")
        reconnect()
        cluster.restart("fast")

    def begin(self):
        self._base = self._cluster.directory / "base"
        self._target.run("pg_basebackup", "-c", "fast", "-D", str(self._base), "-d", f"{self._cluster.url}postgres")

    def mark(self):
        self._time = execute("SELECT clock_timestamp()::text")

    def restore(self):
        segment = execute("SELECT pg_walfile_name(pg_current_wal_lsn())")
        execute("SELECT pg_switch_wal()")
        until(lambda: (self._archive / segment).exists(), 60)
        for command in (["rm", "-rf", self._target.data], ["cp", "-a", self._base, self._target.data]):
            self._target.run_program(*map(str, command))
        with (self._target.data / "postgresql.auto.conf").open("a") as file:
            file.write(f"restore_command = 'cp {self._archive}/%f %p'\n")
            file.write(
                f"recovery_target_time = '{self._time}'\nrecovery_target_action = 'promote'\narchive_mode = off\n"
            )
        (self._target.data / "recovery.signal").touch()
        self._target.start()


def execute(sql):
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0] if cursor.description else None


def order(label, job_type, *arguments, **options):
    """Commit a business row together with its chain."""
    with transaction.atomic(using=ALIAS):
        chain = job_type.enqueue(*arguments, **options)
        Effect.objects.using(ALIAS).create(job_id=chain.id, label=label)
    return chain


@pytest.mark.parametrize("kind", [Dump, PointInTime])
def test_workers_continue_with_what_a_backup_contains(kind, cluster, target, start_process, tmp_path, monkeypatch):
    monkeypatch.setitem(get_registry().declared, "chaos.nothing", jobs.nothing)  # for the schedules
    backup = kind(cluster, target)
    journal = tmp_path / "journal"
    journal.touch()
    worker = start_process("--slots", "4", LEASE_SECONDS="30").until_ready()
    with use_database(ALIAS):
        before_base = order("early", jobs.write, 0)
        until(lambda: before_base.refresh().status == "completed", 30, lambda: worker.output)
        if kind is PointInTime:
            backup.begin()

        done = order("done", jobs.write, 0, deduplicate=Deduplicate("known", scope="any"))
        outside_before = order("outside before", jobs.outside, str(journal))
        running = order("running", jobs.gated, "go on")
        waiting = order("waiting", jobs.gather, blockers=[running])
        outside = order("outside after", jobs.outside, str(journal), delay=3600)
        schedules.create("once", jobs.nothing, every=3600)
        schedules.create("each", jobs.nothing, every=3600, on_missed="run_all", max_catch_up=5)
        until(lambda: outside_before.refresh().status == done.refresh().status == "completed", 30)
        until(lambda: Effect.objects.using(ALIAS).filter(label="started").exists(), 30, lambda: worker.output)
        backup.mark()
        if kind is Dump:
            backup.begin()

        # Everything from here on is lost.
        chains.run_now(outside)
        lost = order("lost", jobs.write, 0, deduplicate=Deduplicate("unknown", scope="any"))
        until(lambda: lost.refresh().status == outside.refresh().status == "completed", 30, lambda: worker.output)
        assert Counter(journal.read_text().split()) == {str(outside_before.id): 1, str(outside.id): 1}
        worker.kill()
        backup.restore()
        reconnect()

    with connected(target, RESTORED), use_database(RESTORED), started_processes(tmp_path, target.environment) as start:
        labels = set(Effect.objects.using(RESTORED).values_list("label", flat=True))
        own = {"written", "started"}
        assert labels - own == {"early", "done", "outside before", "running", "waiting", "outside after"}
        assert not Job.objects.filter(pk=lost.id).exists()
        held = Job.objects.get(pk=running.id)
        assert (held.status, held.attempt, held.lease_number) == ("running", 1, 1)
        assert held.leased_by is not None

        # The backup is a day old.
        day = timedelta(days=1)
        Job.objects.filter(status="running").update(leased_until=F("leased_until") - day)
        Schedule.objects.update(next_tick_at=F("next_tick_at") - day, anchor_at=F("anchor_at") - day)
        chains.run_now(outside.id)
        Effect.objects.using(RESTORED).create(job_id=running.id, label="go on")
        fleet = start("--slots", "4").until_ready()
        finished = [running.id, waiting.id, outside.id]
        until(lambda: not Job.objects.filter(pk__in=finished).exclude(status="completed").exists(), 60, fleet.output)
        until(lambda: count("each") == 5 and count("once") == 1, 60, lambda: fleet.output)
        assert Schedule.objects.filter(next_tick_at__gt=timezone.now()).count() == 2

        rerun = Job.objects.get(pk=running.id)
        assert (rerun.attempt, rerun.lease_number, rerun.crashes) == (2, 2, 1)
        assert FailedAttempt.objects.using(RESTORED).get().job_id == running.id
        assert Counter(journal.read_text().split()) == {str(outside_before.id): 1, str(outside.id): 2}
        assert jobs.write.enqueue(0, deduplicate=Deduplicate("known", scope="any")).id == done.id
        assert not jobs.write.enqueue(0, deduplicate=Deduplicate("unknown", scope="any")).deduplicated
        until(lambda: not Job.objects.incomplete().exists(), 30, lambda: fleet.output)
        assert_invariants(RESTORED)
        assert (count("each"), count("once")) == (5, 1)


def count(schedule):
    return Job.objects.filter(schedule_name=schedule).count()
