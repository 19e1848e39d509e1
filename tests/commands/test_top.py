"""``top``: snapshots of workers, queues and running jobs, refreshed on a terminal, and appended in other output."""

import io
import sys
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError

from django_jobchains.cli import top
from django_jobchains.models import Job
from tests.commands.workers import worker
from tests.support.chains import failed, running
from tests.support.throughput import tally

pytestmark = pytest.mark.django_db


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def stops_after(monkeypatch):
    """Return a function that makes Ctrl-C arrive after this many snapshots."""

    def stops_after(count: int) -> None:
        left = [count]

        def sleep(seconds: float) -> None:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

        monkeypatch.setattr("time.sleep", sleep)

    return stops_after


def test_a_snapshot_shows_workers_queues_and_running_jobs(run, store):
    worker(store)
    chain = running(store)
    failed(store)
    done = run("top", "--once")
    assert done.code == 0
    assert done.lines[0].startswith("1 worker · 3 of 10 slots busy · 0 jobs due · ")
    for words in ("Workers", "mail:7:abc", "Queues", "default", "Running", str(chain.id), "worker-1", "Boom: no"):
        assert words in done.out


def test_a_snapshot_shows_the_throughput(run, store):
    store.stats.add_counts([tally(completed=7, failed=2)])
    assert run("top", "--once").lines[1].endswith("last hour: 7 completed, 2 failed")
    last_hour = run("top", "--once", "--format", "json").json["throughput"]["last_hour"]
    assert (last_hour["completed"], last_hour["failed"]) == (7, 2)


def test_running_jobs_are_limited_to_the_longest(run, store):
    made = [running(store) for _ in range(25)]
    oldest = Job.objects.get(pk=made[-1].id)
    Job.objects.filter(pk=oldest.pk).update(last_attempt_at=oldest.created_at.replace(year=2020))
    found = run("top", "--once", "--format", "json").json
    assert len(found["running"]) == top.MAX_SHOWN
    assert found["running"][0]["id"] == str(oldest.id)
    seconds = [job["running_seconds"] for job in found["running"]]
    assert seconds == sorted(seconds, reverse=True)
    assert min(seconds) >= 0
    assert found["overview"]["queues"][0]["running"] == 25


def test_without_a_terminal_snapshots_are_appended_until_ctrl_c(run, stops_after):
    stops_after(3)
    done = run("top")
    assert (done.code, done.out.count("0 workers")) == (0, 3)
    assert "\x1b" not in done.out


def test_without_rich_snapshots_are_appended_on_a_terminal_too(stops_after, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.live", None)
    stops_after(2)
    out = Terminal()
    call_command("jobchains", "top", stdout=out, no_color=True)
    assert out.getvalue().count("0 workers") == 2
    assert "\x1b" not in out.getvalue()


def test_a_database_error_is_shown_and_top_continues(run, stops_after, monkeypatch):
    real, errors = top.snapshot, [OperationalError("the server went away\nmore")]

    def snapshot(using: str) -> Any:
        if errors:
            raise errors.pop()
        return real(using)

    monkeypatch.setattr(top, "snapshot", snapshot)
    monkeypatch.setattr("django.db.backends.base.base.BaseDatabaseWrapper.close", lambda self: None)
    stops_after(2)
    done = run("top")
    assert done.notes == "Database error: the server went away. Trying again.\n"
    assert done.out.count("0 workers") == 1
