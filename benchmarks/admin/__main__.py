"""Measure the admin with a large database: ``python -m benchmarks.admin fill | measure | page | drop``."""

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import django

from benchmarks.cells import NoServer


def main() -> None:
    options = _options()
    os.environ["BENCH_DATABASE_NAME"] = options.database
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.admin.settings"
    django.setup()
    try:
        COMMANDS[options.command](options)
    except NoServer as error:
        sys.exit(str(error))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admin", description=__doc__)
    database = argparse.ArgumentParser(add_help=False)
    database.add_argument(
        "--database", default="jobchains_admin", help="the name of the database, which stays until it is dropped"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    fill = commands.add_parser("fill", parents=[database], help="create the database")
    fill.add_argument("--jobs", type=int, default=10_000_000)
    fill.add_argument("--replace", action="store_true", help="drop an existing database first")
    measure = commands.add_parser("measure", parents=[database], help="visit every page")
    measure.add_argument("--times", type=int, default=20)
    measure.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="only visits whose group or name contains a text"
    )
    measure.add_argument("--json", type=Path, metavar="FILE", help="write every value to this file")
    measure.add_argument("--page", type=Path, metavar="FILE", help="write the documentation page to this file")
    page = commands.add_parser("page", parents=[database], help="write the page from a --json file, without measuring")
    page.add_argument("--from", dest="read", type=Path, required=True, metavar="FILE")
    page.add_argument("--page", type=Path, required=True, metavar="FILE")
    commands.add_parser("drop", parents=[database], help="drop the database")
    return parser.parse_args()


def _fill(options: argparse.Namespace) -> None:
    from benchmarks.admin.filling import fill
    from benchmarks.admin.sizes import Sizes
    from benchmarks.database import connected

    with connected() as server:
        if options.replace:
            server.execute(f'DROP DATABASE IF EXISTS "{options.database}" WITH (FORCE)')
        server.execute(f'CREATE DATABASE "{options.database}"')
    fill(Sizes(options.jobs), lambda text: print(text, flush=True))


def _drop(options: argparse.Namespace) -> None:
    from benchmarks.database import connected

    with connected() as server:
        server.execute(f'DROP DATABASE IF EXISTS "{options.database}" WITH (FORCE)')


def _measure(options: argparse.Namespace) -> None:
    from benchmarks.admin import report
    from benchmarks.admin.filling import refresh, rows
    from benchmarks.admin.places import Places
    from benchmarks.admin.visiting import operator, visited
    from benchmarks.admin.visits import all_visits
    from benchmarks.database import connected, settings_of
    from benchmarks.machine import facts

    refresh()
    counted = rows()
    with connected() as server:
        run: dict[str, Any] = {"server": settings_of(server), "machine": facts(), "rows": counted, "visits": []}
    run["how"] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "times": options.times, "jobs": counted["jobs"]}
    group = ""
    wanted = [visit for visit in all_visits() if _is_wanted(f"{visit.group}: {visit.name}", options.only)]
    for result in visited(wanted, operator(), Places.find(), options.times):
        if result.group != group:
            print(group := result.group)
        print(report.line(result), flush=True)
        run["visits"].append(result.as_json())
        if options.json:
            options.json.write_text(json.dumps(run, indent=1))
    if options.page:
        options.page.write_text(report.page(run))


def _is_wanted(name: str, only: list[str]) -> bool:
    return not only or any(part in name for part in only)


def _page(options: argparse.Namespace) -> None:
    from benchmarks.admin.report import page

    options.page.write_text(page(json.loads(options.read.read_text())))


COMMANDS = {"fill": _fill, "measure": _measure, "page": _page, "drop": _drop}

main()
