"""Several processes as one contestant, measured from the first start of a handler to the last commit."""

import sys
from typing import Any

import pytest

from benchmarks.workers import WorkerFailed, check_ended, figures, together

#: Writes a summary, as a worker does, with the values that the process received.
PROCESS = """
import json, os, pathlib
summary = {"ended": int(os.environ["JOBS"]), "processes": os.environ["BENCH_PROCESSES"]}
pathlib.Path(os.environ["BENCH_MARKS"], f"{os.getpid()}.json").write_text(json.dumps(summary))
"""

WAITS = "import threading; threading.Event().wait()"


def marks(first: tuple[float, float] | None, last: tuple[float, float], ended: int) -> dict[str, Any]:
    return {
        "first": {"time": first[0], "cpu": first[1]} if first else {},
        "last": {"time": last[0], "cpu": last[1]} if first else {"cpu": last[1]},
        "ended": ended,
        "errors": [] if ended else ["ValueError: no"],
    }


def test_time_is_measured_from_the_first_start_to_the_last_commit_of_all_processes() -> None:
    both = [marks((10.0, 1.0), (12.0, 2.0), 30), marks((11.0, 1.0), (15.0, 4.0), 70)]
    assert figures(both, 100) == {"jobs/s": 20.0, "CPU µs/job": 40_000.0}


def test_a_process_without_jobs_is_not_counted() -> None:
    assert figures([marks((1.0, 0.0), (2.0, 1.0), 10), marks(None, (0.0, 5.0), 0)], 10, "step")["steps/s"] == 10.0


def test_jobs_that_did_not_end_are_an_error_with_their_errors() -> None:
    with pytest.raises(WorkerFailed, match=r"30 of 31 jobs ended. 1 errors: .'ValueError: no'"):
        check_ended([marks((1.0, 0.0), (2.0, 1.0), 30), marks(None, (0.0, 0.0), 0)], 31)


def test_each_process_writes_its_marks_and_knows_the_number_of_processes() -> None:
    command = [sys.executable, "-c", PROCESS]
    assert together([command] * 2, JOBS="7") == [{"ended": 7, "processes": "2"}] * 2


def test_a_process_that_fails_ends_the_others_and_its_output_is_in_the_error() -> None:
    with pytest.raises(WorkerFailed, match="no such table"):
        together([[sys.executable, "-c", code] for code in (WAITS, "raise SystemExit('no such table')")])
