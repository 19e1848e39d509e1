"""``manage.py run_contract module:Class``: runs a contract in any project, and reports the result of each rule."""

import os
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    help = "Runs the contract of a notifier, codec, payload type or pool, and reports the result of each rule."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "contract", metavar="MODULE:CLASS", help="the subclass of a contract: notifiers:TestMyNotifier"
        )

    def handle(self, *, contract: str, **options: Any) -> None:
        module, _, name = contract.partition(":")
        if not (module and name):
            raise CommandError(f"{contract!r} is not a module and a class, such as tests:TestMyNotifier.")
        try:
            import pytest
            import pytest_django  # noqa: F401
        except ImportError as error:
            raise CommandError(f"Contracts need {error.name}: pip install pytest pytest-django") from error
        code = pytest.main([*_options(name), f"{module}::{name}"])
        if code:
            raise CommandError(f"{contract} has not passed: see the report above.", returncode=int(code))


def _options(class_name: str) -> list[str]:
    """Return options with which pytest ignores the project's own configuration, and reports each rule."""
    return [
        "--pyargs",
        f"--config-file={os.devnull}",
        f"--rootdir={Path.cwd()}",
        "--noconftest",
        "--import-mode=importlib",
        f"--override-ini=python_classes={class_name}",
        "-pno:cacheprovider",
        # The warning says that modules were imported before pytest could rewrite their assertions. Contracts were not.
        "-Wignore::pytest.PytestAssertRewriteWarning",
        "--verbose",
        "--tb=short",
        "-ra",
    ]
