"""The benchmarks start, and their cells have names."""

import subprocess
import sys

import pytest

from benchmarks import peers

pytestmark = pytest.mark.slow


def output(*options: str) -> str:
    command = [sys.executable, "-m", "benchmarks", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_each_cell_has_its_own_name_and_peers_have_cells() -> None:
    names = [line.split()[0] for line in output("--list", "--full").splitlines()]
    assert len(set(names)) == len(names)
    assert set(peers.SUBJECTS) <= set(names)


def test_a_cell_runs() -> None:
    assert "sqlite3 loop" in output("--quick", "--rounds", "1", "--only", "sqlite-drain")
