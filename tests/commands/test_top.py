"""``top``: snapshots of workers, queues and what runs; live on a terminal, plain elsewhere."""

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError

from django_jobchains.console import top
from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.commands.conftest import Run
from tests.commands.facts import worker
from tests.interventions.chains_at import failed, running
from tests.throughput.telling import tally

pytestmark = pytest.mark.django_db


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stops_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets somebody press Ctrl-C after so many snapshots."""

    def stops_after(count: int) -> None:
        left = [count]

        def sleep(seconds: float) -> None:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

        monkeypatch.setattr("time.sleep", sleep)

    return stops_after


def test_a_snapshot_shows_workers_queues_and_running_jobs(run: Run, store: Store) -> None:
    worker(store)
    chain = running(store)
    failed(store)
    done = run("top", "--once")
    assert done.code == 0
    assert done.lines[0].startswith("1 worker · 3 of 10 slots busy · 0 jobs due · ")
    for words in ("Workers", "mail:7:abc", "Queues", "default", "Running", str(chain.id), "worker-1", "Boom: no"):
        assert words in done.out


def test_a_snapshot_shows_what_was_done(run: Run, store: Store) -> None:
    store.add_counts([tally(completed=7, failed=2)])
    assert run("top", "--once").lines[1].endswith("last hour: 7 completed, 2 failed")
    told = run("top", "--once", "--format", "json").json["throughput"]["last_hour"]
    assert (told["completed"], told["failed"]) == (7, 2)


def test_what_runs_for_longest_comes_first_and_some_of_many(run: Run, store: Store) -> None:
    made = [running(store) for _ in range(25)]
    oldest = Job.objects.get(pk=made[-1].id)
    Job.objects.filter(pk=oldest.pk).update(last_attempt_at=oldest.created_at.replace(year=2020))
    found = run("top", "--once", "--format", "json").json
    assert len(found["running"]) == top.MOST_SHOWN
    assert found["running"][0]["id"] == str(oldest.id)
    seconds = [job["running_seconds"] for job in found["running"]]
    assert seconds == sorted(seconds, reverse=True)
    assert min(seconds) >= 0
    assert found["overview"]["queues"][0]["running"] == 25


def test_without_a_terminal_snapshots_follow_each_other_until_ctrl_c(
    run: Run, stops_after: Callable[[int], None]
) -> None:
    stops_after(3)
    done = run("top")
    assert (done.code, done.out.count("0 workers")) == (0, 3)
    assert "\x1b" not in done.out


def test_without_rich_it_is_plain_on_a_terminal_too(
    stops_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich.live", None)
    stops_after(2)
    out = Terminal()
    call_command("jobchains", "top", stdout=out, no_color=True)
    assert out.getvalue().count("0 workers") == 2
    assert "\x1b" not in out.getvalue()


def test_while_the_database_is_away_it_says_so_and_goes_on(
    run: Run, stops_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, errors = top.snapshot, [OperationalError("the server went away\nmore")]

    def snapshot(using: str) -> Any:
        if errors:
            raise errors.pop()
        return real(using)

    monkeypatch.setattr(top, "snapshot", snapshot)
    monkeypatch.setattr("django.db.backends.base.base.BaseDatabaseWrapper.close", lambda self: None)
    stops_after(2)
    done = run("top")
    assert done.notes == "The database says: the server went away. Trying again.\n"
    assert done.out.count("0 workers") == 1
