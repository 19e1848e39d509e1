"""The base class of subcommands."""

from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Any, ClassVar

from django_jobchains.cli.screen import Screen


@dataclass(frozen=True)
class Invocation:
    """One call of a subcommand. ``using``: the alias of the database with the job tables."""

    options: dict[str, Any]
    screen: Screen
    using: str

    def __getitem__(self, name: str) -> Any:
        return self.options[name]


class Subcommand:
    name: ClassVar[str]
    help: ClassVar[str]
    #: The output formats. The first is the default.
    forms: ClassVar[tuple[str, ...]] = ("table", "json")

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments of this subcommand."""

    def run(self, call: Invocation) -> None:
        """Run it. Raises ``CommandError`` if a condition is not met or nothing is found."""
        raise NotImplementedError
