"""``python -m benchmarks``: measure everything, or the cells named with ``--only``."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django

if TYPE_CHECKING:
    from benchmarks.cells import Cell

SUBJECTS = ("draining", "waking", "enqueueing", "flat", "held", "on_sqlite")


def main() -> None:
    options = _options()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()))
        os.environ["BENCH_SQLITE"] = str(Path(folder, "bench.sqlite3"))
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.project.settings"
        django.setup()
        from benchmarks.database import NoServer, migrate, postgresql
        from benchmarks.machine import facts, file_system

        cells = [cell for cell in _cells(options.quick) if _is_chosen(cell.name, options.only)]
        if options.list:
            print("\n".join(f"{cell.name:<20} {cell.title}" for cell in cells))
            return
        if not cells:
            sys.exit("There is no such cell; --list names them.")
        machine: dict[str, Any] = {**facts(), "SQLite's file system": file_system(Path(folder))}
        migrate("sqlite")
        if options.profile or not all(cell.name.startswith("sqlite") for cell in cells):
            try:
                machine["PostgreSQL"] = stack.enter_context(postgresql(allow_unsafe=options.allow_unsafe))
            except NoServer as error:
                sys.exit(str(error))
        print(_text(machine))
        if options.profile:
            _profile(options.profile, options.jobs)
        else:
            _measure(cells, options, machine)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cells, or the beginnings of their names")
    parser.add_argument("--list", action="store_true", help="name the cells")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few jobs: shows that it works, measures nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single value there")
    parser.add_argument(
        "--allow-unsafe", action="store_true", help="measure a PostgreSQL that does not flush its commits"
    )
    parser.add_argument("--profile", metavar="JOB_TYPE", help="instead: where a worker's time goes (bench.value, …)")
    parser.add_argument("--jobs", type=int, default=20_000, help="of the profile")
    return parser.parse_args()


def _cells(is_quick: bool) -> "Iterator[Cell]":
    from importlib import import_module

    for subject in SUBJECTS:
        yield from import_module(f"benchmarks.{subject}").cells(is_quick=is_quick)


def _is_chosen(name: str, only: list[str] | None) -> bool:
    return not only or name in only or any(name.startswith(f"{start}-") for start in only)


def _profile(job_type: str, jobs: int) -> None:
    from benchmarks.profiling import profile

    profile(job_type, jobs)


def _measure(cells: "list[Cell]", options: argparse.Namespace, machine: dict[str, Any]) -> None:
    from benchmarks.cells import measure
    from benchmarks.machine import load, steal_share, ticks
    from benchmarks.report import as_json, table

    results = []
    for cell in cells:
        before = ticks()
        result = measure(cell, options.rounds, _progress)
        steal = steal_share(before)
        _progress("")
        print(f"\n{cell.name}: {cell.title}  (load {load():.1f}, steal {steal:.1%})\n{table(result)}", flush=True)
        results.append(as_json(result, load(), steal))
        if options.json:
            options.json.write_text(json.dumps({"machine": machine, "cells": results}, indent=1))


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _text(machine: dict[str, Any]) -> str:
    server = machine.get("PostgreSQL", {})
    own = " · ".join(f"{name} {value}" for name, value in machine.items() if name != "PostgreSQL")
    return own + "".join(f"\nPostgreSQL: {name} = {value}" for name, value in server.items())


main()
