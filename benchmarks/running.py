"""A run: measures cells one after the other, and reports them on the terminal, as JSON and as a page."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.page import page
from benchmarks.report import Measured, table
from benchmarks.subjects import Amount


class CellFailed(Exception):
    """The process of a cell failed; it has reported why."""


@dataclass
class Run:
    """A run. ``peers``: their settings. The files are optional."""

    amount: Amount
    machine: dict[str, Any]
    peers: dict[str, Any]
    json_file: Path | None = None
    page_file: Path | None = None
    cells: list[Measured] = field(default_factory=list)

    def measure(self, cells: Iterable[tuple[str, str]]) -> list[str]:
        """Measure the cells, given by subject and name, and return those that failed, which does not end the run."""
        broken = []
        for subject, name in cells:
            try:
                measured = _in_own_process(subject, name, self.amount)
            except CellFailed:
                broken.append(name)
                continue
            circumstances = f"{measured['seconds']:.0f} s, load {measured['load']:.1f}, steal {measured['steal']:.1%}"
            print(f"\n{name}: {measured['title']}  ({circumstances})\n{table(measured)}", flush=True)
            self.cells.append(measured)
            self._write()
        return broken

    def _write(self) -> None:
        how = {"date": f"{datetime.now(UTC):%Y-%m-%d}", **asdict(self.amount)}
        everything = {"how": how, "machine": self.machine, "peers": self.peers, "cells": self.cells}
        if self.json_file:
            self.json_file.write_text(json.dumps(everything, indent=1))
        if self.page_file:
            self.page_file.write_text(page(everything))


def _in_own_process(subject: str, name: str, amount: Amount) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "cell.json")
        command = [sys.executable, "-m", "benchmarks.one", subject, name, json.dumps(asdict(amount)), str(file)]
        process = subprocess.Popen(command)
        try:
            process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode:
            raise CellFailed(name)
        measured: Measured = json.loads(file.read_text())
        return measured


def merge(files: Iterable[Path], json_file: Path | None, page_file: Path | None) -> None:
    """Merge runs into one. If several contain a cell or a peer, the last one counts.

    Raises ValueError if they were measured with different servers or software, whose figures cannot be compared.
    """
    runs = [json.loads(file.read_text()) for file in files]
    machine: dict[str, Any] = {}
    for run in runs:
        different = {name for name, value in run["machine"].items() if machine.get(name, value) != value}
        if different:
            raise ValueError(f"The runs differ in: {', '.join(sorted(different))}.")
        machine |= run["machine"]
    everything = {
        "how": {**runs[-1]["how"], "is_quick": any(run["how"]["is_quick"] for run in runs)},
        "machine": machine,
        "peers": {name: settings for run in runs for name, settings in run["peers"].items()},
        "cells": list({cell["name"]: cell for run in runs for cell in run["cells"]}.values()),
    }
    if json_file:
        json_file.write_text(json.dumps(everything, indent=1))
    if page_file:
        page_file.write_text(page(everything))
