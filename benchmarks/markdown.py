"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line(str(value)) for value in values)} |" for values in lines)


def line(text: str) -> str:
    """Return the text as one line that may stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")
