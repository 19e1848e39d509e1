"""A patch that breaks one guard, and the tests that must notice it."""

from dataclasses import dataclass
from pathlib import Path

from tests.mutations import PATCHES

DATABASES = ("sqlite", "postgresql")


@dataclass(frozen=True)
class Mutation:
    """A patch. ``tests`` are test files or node ids, as pytest accepts them."""

    name: str
    guard: str
    tests: tuple[str, ...]
    database: str
    patch: Path


def all_mutations() -> list[Mutation]:
    return [read(path) for path in sorted(PATCHES.glob("*.patch"))]


def read(path: Path) -> Mutation:
    """Read a patch that begins with the lines ``Guard:``, ``Tests:`` and ``Database:``, which git ignores."""
    header, _, _ = path.read_text().partition("\n\n")
    fields = dict(line.split(": ", 1) for line in header.splitlines())
    if fields.keys() != {"Guard", "Tests", "Database"} or fields["Database"] not in DATABASES:
        raise ValueError(f"{path.name} does not begin with the lines Guard:, Tests: and Database: sqlite|postgresql.")
    return Mutation(path.stem, fields["Guard"], tuple(fields["Tests"].split()), fields["Database"], path)
