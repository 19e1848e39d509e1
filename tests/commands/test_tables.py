"""Tables, durations and progress bars, from which screens are made."""

import io
from datetime import timedelta
from typing import Any

import pytest
from django.core.management.base import OutputWrapper

from django_jobchains.cli import converters, screen
from django_jobchains.cli.formatting import shortened
from django_jobchains.cli.tables import Cell, Column, fitted, table, width_of
from django_jobchains.text.humanize import age, span

COLUMNS = (
    Column("ID"),
    Column("NAME", min_width=4),
    Column("COUNT", is_number=True),
    Column("MORE", min_width=6, is_optional=True),
)
ROWS = [["0123456789", "a long name", "5", "some more words"], ["1", "b", "1,000", ""]]


def lines(width: int | None, rows: list[Any] = ROWS) -> list[str]:
    return table(COLUMNS, rows, width, str)


def test_columns_fit_their_content_and_numbers_are_right_aligned() -> None:
    assert lines(None) == [
        "ID          NAME         COUNT  MORE",
        "0123456789  a long name      5  some more words",
        "1           b            1,000",
    ]


def test_a_table_fits_the_width_and_keeps_whole_ids() -> None:
    for width in range(23, 60):
        made = lines(width)
        assert max(map(len, made)) <= width
        assert made[1].startswith("0123456789  a")
        assert ("MORE" in made[0]) == (width >= 31)


def test_a_table_that_cannot_fit_keeps_whole_ids() -> None:
    assert lines(5)[1].startswith("0123456789  a l…")


def test_colored_cells_are_aligned_by_their_visible_width() -> None:
    painted = [["1", Cell("x", lambda text: f"<{text}>"), "5", ""], ["2", "long", "6", ""]]
    assert table(COLUMNS[:3], [row[:3] for row in painted], None, str)[1:] == ["1   <x>         5", "2   long      6"]


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("漢字", 4), ("e\u0301", 1), ("é", 1)])
def test_the_width_of_a_text_is_that_on_a_terminal(text: str, width: int) -> None:
    assert width_of(text) == width


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("漢字漢字", 5, "漢字…"),
        ("漢字漢字", 4, "漢…"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
    ],
)
def test_a_shortened_text_ends_with_an_ellipsis(text: str, width: int, expected: str) -> None:
    assert fitted(text, width) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-1, "0 ms"), (0.0004, "0 ms"), (0.85, "850 ms"), (0.9996, "1.0 s"), (4.24, "4.2 s"), (9.96, "10 s"),
        (59.6, "1 min"), (185, "3 min 5 s"), (3_600, "1 h"), (7_500, "2 h 5 min"), (187_200, "2 d 4 h"),
    ],
)  # fmt: skip
def test_a_duration_has_at_most_two_units(seconds: float, expected: str) -> None:
    assert span(seconds) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-5, "0 s"), (0.9, "0 s"), (59, "59 s"), (60, "1 min"), (7_199, "119 min"), (7_200, "2 h"), (172_800, "2 d"),
     (10**8, "1,157 d")],
)  # fmt: skip
def test_an_age_has_one_unit(seconds: float, expected: str) -> None:
    assert age(seconds) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", timedelta(seconds=90)), ("5m", timedelta(minutes=5)), ("5min", timedelta(minutes=5)),
        ("1h30m", timedelta(hours=1, minutes=30)), ("30d", timedelta(days=30)), ("2w", timedelta(weeks=2)),
        ("1.5h", timedelta(hours=1.5)), ("250ms", timedelta(milliseconds=250)), ("1d 12h", timedelta(days=1.5)),
    ],
)  # fmt: skip
def test_durations_can_be_parsed(text: str, expected: timedelta) -> None:
    assert converters.duration(text) == expected


@pytest.mark.parametrize("text", ["", "5", "d", "5x", "-5d", "5d-", "soon", "9" * 400 + "w", "1e5d"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(converters.ArgumentTypeError):
        converters.duration(text)


def test_a_long_value_is_shortened_to_one_line() -> None:
    assert shortened({"a": 1}) == '{"a": 1}'
    assert shortened("x" * 500).endswith("… (502 characters)")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_progress_bar_is_drawn_only_on_a_terminal_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "PROGRESS_DELAY_SECONDS", 0)
    monkeypatch.setattr(screen, "PROGRESS_INTERVAL_SECONDS", 0)
    for stream in (_Terminal(), io.StringIO()):
        with screen.ProgressBar(OutputWrapper(stream), "chains") as bar:
            bar.show(1_500, 0.5)
        if stream.isatty():
            assert f"{'█' * 12}{'░' * 12}  50%  1,500 chains" in stream.getvalue()
            assert stream.getvalue().endswith("\r\x1b[K")
        else:
            assert stream.getvalue() == ""


def test_a_fast_operation_has_no_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "PROGRESS_DELAY_SECONDS", 60)
    stream = _Terminal()
    with screen.ProgressBar(OutputWrapper(stream), "chains") as bar:
        bar.show(1, 1)
    assert stream.getvalue() == ""
