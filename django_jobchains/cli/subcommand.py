"""The base class of subcommands, and the code that subcommands share that change several rows."""

from argparse import ArgumentParser
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from django.core.management.base import CommandError

from django_jobchains.cli.screen import Screen, counted

Result = TypeVar("Result")

#: The number of ids in one call of the API, which is one transaction.
BATCH_SIZE = 500
MAX_NAMED = 5


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


def batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[start : start + BATCH_SIZE] for start in range(0, len(items), BATCH_SIZE))


def in_batches(
    items: Sequence[Any], noun: str, screen: Screen, change: Callable[[Sequence[Any]], Result]
) -> list[Result]:
    """Call a function with each batch, and show how much is done. Return its results."""
    results, done = [], 0
    with screen.progress(noun) as show:
        for batch in batches(items):
            show(done, done / len(items))
            results.append(change(batch))
            done += len(batch)
    return results


def check_known(noun: str, asked: Sequence[Any], found: Container[Any]) -> None:
    """Raise an error for unknown ids, before anything is changed."""
    if missing := [id_ for id_ in asked if id_ not in found]:
        more = f" and {len(missing) - MAX_NAMED:,} more" if len(missing) > MAX_NAMED else ""
        raise CommandError(f"No {noun} {', '.join(map(str, missing[:MAX_NAMED]))}{more}. Nothing was changed.")


def report_changes(
    screen: Screen, asked: int, changed: int, noun: str, participle: str, reason: str, value: Any
) -> None:
    """Write how many were changed. ``value``: what the JSON contains about them."""
    if screen.is_json:
        screen.json({participle.replace(" ", "_"): value, "asked": asked})
    elif changed:
        screen.line(f"{counted(changed, noun)} {participle}.", "success")
    if not changed:
        raise CommandError(f"Nothing {participle}: {reason}.")
    if changed < asked and not screen.is_json:
        screen.line(f"{counted(asked - changed, 'id')} not changed: {reason}.", "warning")
