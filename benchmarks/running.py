"""A run: measures cells one after the other, and reports them on the terminal, as JSON and as a page."""

import json
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import connections

from benchmarks.cells import Cell, measure
from benchmarks.machine import load, steal_share, ticks
from benchmarks.page import page
from benchmarks.report import Measured, as_json, table


@dataclass
class Run:
    """A run. ``how``: its rounds, date and other facts. ``peers``: their settings. The files are optional."""

    how: dict[str, Any]
    machine: dict[str, Any]
    peers: dict[str, str]
    json_file: Path | None = None
    page_file: Path | None = None
    cells: list[Measured] = field(default_factory=list)

    def measure(self, cells: Iterable[Cell]) -> list[str]:
        """Measure the cells and return the names of those that failed. A failure does not end the run."""
        broken = []
        for cell in cells:
            try:
                self._measure(cell)
            except Exception:
                traceback.print_exc()
                connections.close_all()  # a broken connection may be the cause
                broken.append(cell.name)
        return broken

    def _measure(self, cell: Cell) -> None:
        before = ticks()
        result = measure(cell, self.how["rounds"], _progress)
        _progress("")
        measured = as_json(result, load(), steal_share(before))
        circumstances = f"load {measured['load']:.1f}, steal {measured['steal']:.1%}"
        print(f"\n{cell.name}: {cell.title}  ({circumstances})\n{table(measured)}", flush=True)
        self.cells.append(measured)
        self.write()

    def write(self) -> None:
        everything = {"how": self.how, "machine": self.machine, "peers": self.peers, "cells": self.cells}
        if self.json_file:
            self.json_file.write_text(json.dumps(everything, indent=1))
        if self.page_file:
            self.page_file.write_text(page(everything))


def merged(files: Iterable[Path], page_file: Path) -> Run:
    """Merge several runs into one. If several contain a cell, the last one counts."""
    runs = [json.loads(file.read_text()) for file in files]
    machine = {name: value for run in runs for name, value in run["machine"].items()}
    peers = {name: settings for run in runs for name, settings in run["peers"].items()}
    cells = {cell["name"]: cell for run in runs for cell in run["cells"]}
    return Run(runs[-1]["how"], machine, peers, page_file=page_file, cells=list(cells.values()))


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
