"""A whole run: what it saves when a cell fails, and several runs merged into one."""

import json
from pathlib import Path

import pytest

from benchmarks.cells import Cell, Figures
from benchmarks.running import Run, merged


def cell(name: str, rate: float) -> Cell:
    return Cell(name, "jobs", {"ours": lambda: {"jobs/s": rate}})


def run(json_file: Path, *cells: Cell) -> list[str]:
    how = {"date": "2026-11-21", "rounds": 1, "is_quick": False}
    return Run(how, {json_file.stem: "here"}, {json_file.stem: "1.0"}, json_file).measure(cells)


def test_a_failed_cell_is_named_and_the_others_are_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Figures:
        raise OSError("no server")

    file = tmp_path / "run.json"
    assert run(file, cell("first", 1), Cell("second", "jobs", {"ours": broken}), cell("third", 3)) == ["second"]
    assert [each["name"] for each in json.loads(file.read_text())["cells"]] == ["first", "third"]
    assert "OSError: no server" in capsys.readouterr().err


def test_the_last_run_of_a_cell_counts(tmp_path: Path) -> None:
    files = tmp_path / "monday.json", tmp_path / "tuesday.json"
    run(files[0], cell("drain", 1), cell("chains", 2))
    run(files[1], cell("drain", 9))
    both = merged(files, tmp_path / "page.md")
    both.write()
    assert [(each["name"], each["values"]["ours"]["jobs/s"]) for each in both.cells] == [
        ("drain", [9]),
        ("chains", [2]),
    ]
    assert both.machine == {"monday": "here", "tuesday": "here"}
    assert "| tuesday | 1.0 |" in (tmp_path / "page.md").read_text()
