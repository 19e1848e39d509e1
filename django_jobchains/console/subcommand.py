"""What every subcommand is: a name, its arguments, and what it does."""

from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Any, ClassVar

from django_jobchains.console.screen import Screen


@dataclass(frozen=True)
class Call:
    """One call of a subcommand. ``using``: the alias of the job tables."""

    options: dict[str, Any]
    screen: Screen
    using: str

    def __getitem__(self, name: str) -> Any:
        return self.options[name]


class Subcommand:
    name: ClassVar[str]
    help: ClassVar[str]
    #: The forms of output there are; the first is for people.
    forms: ClassVar[tuple[str, ...]] = ("table", "json")

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the arguments of its own."""

    def run(self, call: Call) -> None:
        """Does it. A condition that is not met, or nothing found, is a ``CommandError``."""
        raise NotImplementedError
