"""Lines, tables and progress bars, with and without rich; durations and values."""

import io
import sys
from datetime import timedelta

import pytest
from django.core.management.base import OutputWrapper

from django_jobchains.cli import converters, screen
from django_jobchains.cli.screen import Cell, Column, Screen, shortened
from django_jobchains.text.humanize import age, span

COLUMNS = (
    Column("ID", lambda row: row[0]),
    Column("NAME", lambda row: row[1], min_width=4),
    Column("COUNT", lambda row: Cell(row[2], "failed"), is_number=True),
    Column("MORE", lambda row: row[3], min_width=6, is_optional=True),
)
ROWS = [["0123456789", "a long name", "5", "some more words"], ["1", "b", "1,000", ""]]


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def written(write, width=None, *, is_painted=False):
    """Return the lines that a function writes to a screen."""
    out = OutputWrapper(io.StringIO())
    write(Screen(out, out, "table", None, width=width, is_painted=is_painted))
    return out.getvalue().splitlines()


def lines(width, rows=ROWS, **options):
    return written(lambda screen: screen.table(COLUMNS, rows), width, **options)


@pytest.fixture(params=[None, 100])
def any_width(request):
    return request.param


@pytest.fixture
def without_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)


def test_columns_fit_their_content_and_numbers_are_right_aligned(any_width):
    assert lines(any_width) == [
        "ID          NAME         COUNT  MORE",
        "0123456789  a long name      5  some more words",
        "1           b            1,000",
    ]


def test_a_table_fits_the_width_and_keeps_whole_ids():
    for width in range(23, 60):
        made = lines(width)
        assert max(map(len, made)) <= width
        assert made[1].startswith("0123456789  a")
        assert ("MORE" in made[0]) == (width >= 31)


def test_a_table_that_cannot_fit_keeps_whole_ids():
    assert lines(5)[1].startswith("0123456789  a l…")


def test_wide_characters_are_aligned_and_cut_by_their_width_on_a_terminal():
    assert lines(100, [["漢字", "漢字漢字", "5", ""], ["1", "b", "6", ""]])[1:] == [
        "漢字  漢字漢字      5",
        "1     b             6",
    ]
    assert written(lambda screen: screen.line("漢字漢字"), 5) == ["漢字…"]


def test_only_painted_output_has_colors(any_width):
    assert "\x1b[1;31m" in lines(any_width, is_painted=True)[1]
    assert "\x1b" not in "".join(lines(any_width))


def test_without_rich_nothing_is_cut_or_painted(without_rich):
    assert lines(5, is_painted=True) == lines(None)
    assert written(lambda screen: screen.line("x" * 99, "error", begin="! "), 5, is_painted=True) == ["! " + "x" * 99]


def test_every_text_is_redacted_and_without_control_characters_or_markup(any_width):
    text = "a\x1b[31m [bold] :smile: password=hunter2"
    shown = "a [31m [bold] :smile: password=********"
    assert written(lambda screen: screen.line(text, begin=text), any_width) == [shown * 2]
    assert written(lambda screen: screen.heading(text), any_width) == [shown]
    assert written(lambda screen: screen.lines(text), any_width) == [shown]
    assert lines(any_width, [[text, "", "", ""]])[1] == shown
    [json] = written(lambda screen: screen.json({"x": text}), any_width)
    assert "hunter2" not in json
    assert "\x1b" not in json


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-1, "0 ms"), (0.0004, "0 ms"), (0.85, "850 ms"), (0.9996, "1.0 s"), (4.24, "4.2 s"), (9.96, "10 s"),
        (59.6, "1 min"), (185, "3 min 5 s"), (3_600, "1 h"), (7_500, "2 h 5 min"), (187_200, "2 d 4 h"),
    ],
)  # fmt: skip
def test_a_duration_has_at_most_two_units(seconds, expected):
    assert span(seconds) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-5, "0 s"), (0.9, "0 s"), (59, "59 s"), (60, "1 min"), (7_199, "119 min"), (7_200, "2 h"), (172_800, "2 d"),
     (10**8, "1,157 d")],
)  # fmt: skip
def test_an_age_has_one_unit(seconds, expected):
    assert age(seconds) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", timedelta(seconds=90)), ("5m", timedelta(minutes=5)), ("5min", timedelta(minutes=5)),
        ("1h30m", timedelta(hours=1, minutes=30)), ("30d", timedelta(days=30)), ("2w", timedelta(weeks=2)),
        ("1.5h", timedelta(hours=1.5)), ("250ms", timedelta(milliseconds=250)), ("1d 12h", timedelta(days=1.5)),
    ],
)  # fmt: skip
def test_durations_can_be_parsed(text, expected):
    assert converters.duration(text) == expected


@pytest.mark.parametrize("text", ["", "5", "d", "5x", "-5d", "5d-", "soon", "9" * 400 + "w", "1e5d"])
def test_invalid_durations_are_refused(text):
    with pytest.raises(converters.ArgumentTypeError):
        converters.duration(text)


def test_a_long_value_is_shortened_to_one_line():
    assert shortened({"a": 1}) == '{"a": 1}'
    assert shortened("x" * 500).endswith("… (502 characters)")


def progress_of(stream, share=0.5):
    out = OutputWrapper(stream)
    with Screen(out, out, "table", None, width=None, is_painted=False).progress("chains") as show:
        show(1_500, share)


def test_a_progress_bar_is_drawn_only_on_a_terminal_and_removed(monkeypatch):
    monkeypatch.setattr(screen, "PROGRESS_DELAY_SECONDS", 0)
    for stream in (_Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        progress_of(stream)
        assert ("50%" in stream.getvalue() and "1,500 chains" in stream.getvalue()) == stream.isatty()
        assert stream.getvalue().endswith("\x1b[2K" if stream.isatty() else "")


def test_a_fast_operation_has_no_progress_bar(monkeypatch):
    monkeypatch.setattr(screen, "PROGRESS_DELAY_SECONDS", 60)
    monkeypatch.setattr(sys, "stderr", stream := _Terminal())
    progress_of(stream)
    assert stream.getvalue() == ""


def test_without_rich_there_is_no_progress_bar(monkeypatch, without_rich):
    monkeypatch.setattr(screen, "PROGRESS_DELAY_SECONDS", 0)
    monkeypatch.setattr(sys, "stderr", stream := _Terminal())
    progress_of(stream)
    assert stream.getvalue() == ""
