"""``manage.py jobchains``: shows and changes jobs. Each subcommand is a module of ``django_jobchains.cli``."""

import argparse
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.management.color import supports_color
from django.db import DEFAULT_DB_ALIAS, connections
from django.db import Error as DatabaseError
from django.utils import translation

from django_jobchains.cli.chains import (
    CancelCommand,
    CompleteCommand,
    DeleteCommand,
    EnqueueCommand,
    PruneCommand,
    RetryCommand,
    RunNowCommand,
)
from django_jobchains.cli.health import HealthCommand
from django_jobchains.cli.limits import LimitsCommand
from django_jobchains.cli.list import ListCommand
from django_jobchains.cli.queues import LimitCommand, PauseCommand, QueuesCommand, ResumeCommand
from django_jobchains.cli.records import RecordsCommand
from django_jobchains.cli.schedules import SchedulesCommand
from django_jobchains.cli.screen import ElapsedTimes, Screen, database_message, discard_output, terminal_width
from django_jobchains.cli.show import ShowCommand
from django_jobchains.cli.status import StatusCommand
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.cli.top import TopCommand
from django_jobchains.cli.types import TypesCommand
from django_jobchains.conf import current_database
from django_jobchains.values import did_you_mean

SUBCOMMANDS: tuple[type[Subcommand], ...] = (
    StatusCommand,
    TopCommand,
    HealthCommand,
    ListCommand,
    ShowCommand,
    TypesCommand,
    EnqueueCommand,
    RetryCommand,
    RunNowCommand,
    CancelCommand,
    CompleteCommand,
    DeleteCommand,
    RecordsCommand,
    PruneCommand,
    QueuesCommand,
    PauseCommand,
    ResumeCommand,
    LimitCommand,
    LimitsCommand,
    SchedulesCommand,
)


class _Subcommands(dict[str, Any]):
    """The choices of subcommands, with an error that suggests the nearest one instead of listing all."""

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        nearest = did_you_mean(str(name), self)
        raise argparse.ArgumentError(None, f"There is no subcommand {name!r}.{nearest} See manage.py jobchains --help.")


class Command(BaseCommand):
    help = "Shows and changes chains, jobs, queues and workers."
    #: The command is used when something is wrong, so other problems must not prevent it.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", title="subcommands")
        for kind in SUBCOMMANDS:
            subcommand = kind()
            own = parsers.add_parser(kind.name, help=kind.help, description=f"{kind.help.capitalize()}.")
            subcommand.add_arguments(own)
            own.add_argument(
                "--database", metavar="ALIAS", help="database alias of the job tables (JOBCHAINS['DATABASE'])"
            )
            own.add_argument(
                "--format", choices=kind.forms, default=kind.forms[0], help=f"output format (default: {kind.forms[0]})"
            )
            _add_options_of_every_command(own)
            own.set_defaults(run=subcommand.run)
        parsers.choices = _Subcommands(parsers.choices or {})

    def handle(self, *args: Any, **options: Any) -> None:
        if options["subcommand"] is None:
            self.stdout.write(self.create_parser("manage.py", "jobchains").format_help())
            return
        try:
            # Operators and scripts read English, whatever the language of the project.
            with translation.override("en"):
                self._run(options)
            self.stdout.flush()
        except BrokenPipeError:
            discard_output()
        except KeyboardInterrupt as error:
            raise CommandError("Stopped. Changes made so far are kept.", returncode=130) from error
        except DatabaseError as error:
            raise CommandError(database_message(error)) from error

    def _run(self, options: dict[str, Any]) -> None:
        using = _alias(options["database"])
        is_painted = self.stdout.isatty() and supports_color() and not options["no_color"]
        screen = Screen(
            self.stdout,
            self.stderr,
            options["format"],
            ElapsedTimes(using),
            width=terminal_width(self.stdout),
            is_painted=is_painted or bool(options["force_color"]),
        )
        options["run"](Invocation(options, screen, using))


def _alias(given: str | None) -> str:
    try:
        alias = given or current_database()
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    if alias not in connections.settings:
        known = ", ".join(connections.settings)
        raise CommandError(f"DATABASES has no alias {alias!r}. Known: {known or DEFAULT_DB_ALIAS}.", returncode=2)
    return alias


def _add_options_of_every_command(parser: argparse.ArgumentParser) -> None:
    """Add Django's options, so that they may also follow the subcommand. Django itself applies them."""
    for names, options in (
        (("-v", "--verbosity"), {"type": int, "choices": [0, 1, 2, 3]}),
        (("--settings",), {}),
        (("--pythonpath",), {}),
        (("--traceback",), {"action": "store_true"}),
        (("--no-color",), {"action": "store_true"}),
        (("--force-color",), {"action": "store_true"}),
    ):
        parser.add_argument(*names, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **options)
