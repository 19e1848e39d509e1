"""Run all benchmark cells, or those named with ``--only``: ``python -m benchmarks``."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django

if TYPE_CHECKING:
    from benchmarks.cells import Cell

SUBJECTS = (
    "draining",
    "draining_records",
    "waking",
    "notifying",
    "enqueueing",
    "observing",
    "notify_cost",
    "joining",
    "memory",
    "scaling",
    "flat",
    "held",
    "bloat",
    "on_sqlite",
    "pools",
    "isolated",
)


def main() -> None:
    options = _options()
    if options.read:
        _write_page(options.read, options.page)
        return
    # Like Ctrl-C, SIGTERM stops the workers and drops the databases.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("Stopped by SIGTERM."))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()))
        os.environ["BENCH_SQLITE"] = str(Path(folder, "bench.sqlite3"))
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.project.settings"
        django.setup()
        from benchmarks.database import NoServer, migrate, postgresql
        from benchmarks.machine import facts, file_system

        cells = _chosen(options)
        if options.list:
            print("\n".join(f"{cell.name:<26} {cell.title}" for cell in cells))
            return
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
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of cells, or prefixes of their names")
    parser.add_argument("--full", action="store_true", help="include the cells that take too long for a normal run")
    parser.add_argument("--list", action="store_true", help="list the cells")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="check that everything works; the figures mean nothing")
    parser.add_argument("--peers", action="store_true", help="also measure the other systems that are installed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every value to this file")
    parser.add_argument("--page", type=Path, metavar="FILE", help="also write the documentation page to this file")
    parser.add_argument(
        "--from",
        dest="read",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="do not measure, but write --page from these --json files; if several contain a cell, the last one counts",
    )
    parser.add_argument(
        "--allow-unsafe", action="store_true", help="measure a PostgreSQL server that does not flush its commits"
    )
    parser.add_argument("--profile", metavar="JOB_TYPE", help="profile a worker instead (bench.value, …)")
    parser.add_argument("--jobs", type=int, default=20_000, help="number of jobs to profile")
    options = parser.parse_args()
    if options.read and not options.page:
        parser.error("--from needs --page")
    return options


def _cells(options: argparse.Namespace) -> "Iterator[Cell]":
    from importlib import import_module

    from benchmarks import peers

    for subject in SUBJECTS:
        for cell in import_module(f"benchmarks.{subject}").cells(is_quick=options.quick):
            is_beside_peers = options.peers and cell.name in peers.SUBJECTS
            beside = peers.contestants(cell.name, is_quick=options.quick) if is_beside_peers else {}
            yield replace(cell, peers={**cell.peers, **beside})


def _chosen(options: argparse.Namespace) -> "list[Cell]":
    chosen = [cell for cell in _cells(options) if _is_chosen(cell, options)]
    if not chosen:
        sys.exit("No cell matches --only; --list --full shows all cells.")
    return chosen


def _is_chosen(cell: "Cell", options: argparse.Namespace) -> bool:
    if cell.name in (options.only or ()):
        return True
    is_named = not options.only or any(cell.name.startswith(f"{start}-") for start in options.only)
    return is_named and (options.full or not cell.is_extra)


def _profile(job_type: str, jobs: int) -> None:
    from benchmarks.profiling import profile

    profile(job_type, jobs)


def _measure(cells: "list[Cell]", options: argparse.Namespace, machine: dict[str, Any]) -> None:
    from benchmarks import peers
    from benchmarks.running import Run

    how = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "rounds": options.rounds, "is_quick": options.quick}
    run = Run(how, machine, peers.settings() if options.peers else {}, options.json, options.page)
    if broken := run.measure(cells):
        sys.exit(f"These cells failed: {', '.join(broken)}")


def _write_page(files: list[Path], page: Path) -> None:
    from benchmarks.running import merged

    merged(files, page).write()


def _text(machine: dict[str, Any]) -> str:
    server = machine.get("PostgreSQL", {})
    own = " · ".join(f"{name} {value}" for name, value in machine.items() if name != "PostgreSQL")
    return own + "".join(f"\nPostgreSQL: {name} = {value}" for name, value in server.items())


main()
