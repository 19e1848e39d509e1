"""However much is said, what is kept and what waits is bounded; and who says nothing costs nothing."""

import threading
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import notes
from django_jobchains.notes import HALF, MOST_LINES, Notebook, Notes
from django_jobchains.processors import Processors, Registry, RunningJob
from django_jobchains.store import ClaimedJob, Said, Store, get_store
from django_jobchains.testing import run_due_jobs
from tests.notes.reading import lines
from tests.store.jobs import running


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


@pytest.fixture
def spoken(db: None, notebook: Notebook) -> Notes:
    """What a running job says."""
    return Notes(running(get_store())[0], notebook)


def say(spoken: Notes, *texts: object) -> None:
    for text in texts:
        spoken.say(20, str(text), None)


def positions(taken: list[Said]) -> list[int]:
    return [line.position for said in taken for line in said.lines]


def stored(store: Store, notebook: Notebook) -> list[int]:
    """Writes what there is, and says which lines are kept."""
    while taken := notebook.take():
        assert store.say(taken) == set()
    return list(notes_rows())


def notes_rows() -> Any:
    from django_jobchains.models import LogLine

    return LogLine.objects.order_by("position").values_list("position", flat=True)


def test_of_many_lines_the_first_and_the_last_are_kept(notebook: Notebook, spoken: Notes) -> None:
    say(spoken, *range(5 * MOST_LINES))
    assert stored(get_store(), notebook) == [*range(HALF), *range(5 * MOST_LINES - HALF, 5 * MOST_LINES)]


@pytest.mark.parametrize("step", [1, 7, 400, 1_300])
def test_it_does_not_matter_how_often_they_are_written(notebook: Notebook, spoken: Notes, step: int) -> None:
    total = MOST_LINES + 3 * step
    with patch.object(notes, "HALF", 50):
        spoken._deleted = 50
        for start in range(0, total, step if step > 1 else 100):
            say(spoken, *range(start, min(start + (step if step > 1 else 100), total)))
            kept = stored(get_store(), notebook)
            assert len(kept) <= 100
    assert kept == [*range(50), *range(total - 50, total)]


def test_fewer_lines_are_kept_all(notebook: Notebook, spoken: Notes) -> None:
    say(spoken, *range(MOST_LINES))
    assert stored(get_store(), notebook) == [*range(MOST_LINES)]


def test_a_loop_that_says_much_fills_no_memory(notebook: Notebook, spoken: Notes) -> None:
    for _ in range(2_000):
        say(spoken, "x" * 8_000)
    assert spoken.characters <= notes.MOST_CHARACTERS_OF_ONE
    taken = notebook.take()
    assert sum(len(line.text) for said in taken for line in said.lines) <= notes.MOST_CHARACTERS_OF_ONE
    assert positions(taken)[0] == 0
    assert positions(taken)[-1] == 1_999
    assert (spoken.characters, notebook.take()) == (0, [])


def test_all_together_fill_no_memory_and_what_waited_longest_goes(notebook: Notebook, spoken: Notes) -> None:
    job: ClaimedJob = running(get_store())[0]
    with patch.object(notes, "MOST_CHARACTERS", 10_000):
        say(spoken, "first")
        for number in range(20):
            say(Notes(job._replace(id=UUID(int=number + 1)), notebook), "x" * 1_000)
    assert notebook.dropped == 13
    taken = notebook.take()
    assert [said.job_id.int for said in taken] == [*range(13, 21)]


def test_a_batch_to_write_is_bounded(notebook: Notebook, spoken: Notes) -> None:
    job: ClaimedJob = running(get_store())[0]
    for number in range(50):
        say(Notes(job._replace(id=UUID(int=number + 1)), notebook), *["x" * 100] * 100)
    sizes = []
    while taken := notebook.take():
        sizes.append(len(positions(taken)))
    assert sum(sizes) == 5_000
    assert max(sizes) <= 2 * notes.MOST_LINES_AT_ONCE


def test_threads_of_one_job_number_their_lines_together(db: None) -> None:
    job = running(get_store())[0]
    notebook = Notebook()
    begin = threading.Barrier(4)
    speaker: RunningJob[Any] = RunningJob(job, None, None, None, notebook)  # type: ignore[arg-type]

    def speak() -> None:
        begin.wait(10)
        for _ in range(100):
            speaker.log("a")

    threads = [threading.Thread(target=speak) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert positions(notebook.take()) == [*range(400)]


@pytest.mark.django_db
def test_a_job_that_says_nothing_costs_no_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    processors = Processors()
    registry.add(processors)
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)

    @processors.register("notes.either")
    def either(job: RunningJob[bool]) -> None:
        for number in range(300 if job.input else 0):
            job.log(str(number))
            job.set_progress(number / 300)

    counts = []
    for speaks in (False, True):
        chain = either.enqueue(speaks)
        with CaptureQueriesContext(connection) as queries:
            run_due_jobs(limit=1, raise_errors=True)
        counts.append(len(queries))
        assert len(lines(chain)) == (300 if speaks else 0)
        assert any("logline" in query["sql"] for query in queries) is speaks
    assert counts[1] - counts[0] == 2
