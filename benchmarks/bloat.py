"""A table after a million jobs under autovacuum, and pruning beside them."""

from collections.abc import Iterator

from benchmarks.cells import Cell


def cells(*, is_quick: bool) -> Iterator[Cell]:
    yield from ()
