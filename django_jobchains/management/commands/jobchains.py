"""``manage.py jobchains``: what operators ask and do; each subcommand is a file of ``console``."""

import argparse
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, connections
from django.db import Error as DatabaseError

from django_jobchains.conf import get_settings
from django_jobchains.console.completing import Complete
from django_jobchains.console.health import Health
from django_jobchains.console.listing import List
from django_jobchains.console.pruning import Prune
from django_jobchains.console.queues import Limit, Pause, Queues, Resume
from django_jobchains.console.screen import Screen, give_up_output
from django_jobchains.console.show import Show
from django_jobchains.console.status import Status
from django_jobchains.console.subcommand import Call, Subcommand
from django_jobchains.console.top import Top
from django_jobchains.console.types import Types
from django_jobchains.console.verbs import Cancel, Delete, Retry, RunNow
from django_jobchains.console.words import Times, said_by_database

SUBCOMMANDS: tuple[type[Subcommand], ...] = (
    Status,
    Top,
    Health,
    List,
    Show,
    Types,
    Retry,
    RunNow,
    Cancel,
    Complete,
    Delete,
    Prune,
    Queues,
    Pause,
    Resume,
    Limit,
)


class Command(BaseCommand):
    help = "Shows and changes chains, jobs, queues and workers."
    #: Asked when something is wrong: then what else is wrong must not be in the way.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND", title="subcommands")
        for kind in SUBCOMMANDS:
            subcommand = kind()
            own = parsers.add_parser(kind.name, help=kind.help, description=f"{kind.help.capitalize()}.")
            subcommand.add_arguments(own)
            own.add_argument("--database", metavar="ALIAS", help="of the job tables (JOBCHAINS['DATABASE'])")
            own.add_argument("--format", choices=kind.forms, default=kind.forms[0], help=f"({kind.forms[0]})")
            _add_options_of_every_command(own)
            own.set_defaults(run=subcommand.run)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._run(options)
            self.stdout.flush()
        except BrokenPipeError:
            give_up_output()
        except KeyboardInterrupt as error:
            raise CommandError("Stopped. What was done stays.", returncode=130) from error
        except DatabaseError as error:
            raise CommandError(said_by_database(error)) from error

    def _run(self, options: dict[str, Any]) -> None:
        using = _alias(options["database"])
        style = self.style
        screen = Screen(
            self.stdout, self.stderr, style, options["format"], Times(using), is_painted=bool(options["force_color"])
        )
        options["run"](Call(options, screen, using))


def _alias(given: str | None) -> str:
    try:
        alias = given or get_settings().DATABASE
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    if alias not in connections.settings:
        known = ", ".join(connections.settings)
        raise CommandError(f"No database {alias!r} in DATABASES. Known: {known or DEFAULT_DB_ALIAS}.", returncode=2)
    return alias


def _add_options_of_every_command(parser: argparse.ArgumentParser) -> None:
    """Django's, so that they may also stand behind the subcommand; what they do is done by Django."""
    for names, options in (
        (("-v", "--verbosity"), {"type": int, "choices": [0, 1, 2, 3]}),
        (("--settings",), {}),
        (("--pythonpath",), {}),
        (("--traceback",), {"action": "store_true"}),
        (("--no-color",), {"action": "store_true"}),
        (("--force-color",), {"action": "store_true"}),
    ):
        parser.add_argument(*names, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **options)
