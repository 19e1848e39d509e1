"""The benchmarks start, and their cells have names."""

import subprocess
import sys

import pytest

from benchmarks import peers

pytestmark = pytest.mark.slow


def names(*options: str) -> list[str]:
    command = [sys.executable, "-m", "benchmarks", "--list", *options]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[0] for line in lines]


def test_each_cell_has_its_own_name_and_peers_have_cells() -> None:
    everything = names("--full")
    assert len(set(everything)) == len(everything)
    assert set(peers.SUBJECTS) <= set(everything)


def test_extra_cells_are_measured_only_on_request() -> None:
    extra = "drain-2-processes-1-slot"
    assert extra not in names("--only", "drain")
    assert extra in names("--only", "drain", "--full")
    assert names("--only", extra) == [extra]


def test_notifiers_are_measured_with_one_idle_worker_with_many_and_for_their_cost() -> None:
    found = names("--only", "notifying", "sqlite-notifying", "notify", "herd")
    assert sorted(found) == [
        "herd",
        "notify-cost-1",
        "notify-cost-20",
        "notify-effect",
        "notifying-1",
        "notifying-20",
        "sqlite-notifying-1",
        "sqlite-notifying-20",
    ]


def test_a_cell_runs() -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", "--only", "sqlite-drain"]
    assert "sqlite3 loop" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
