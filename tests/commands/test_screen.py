"""Lines, tables and progress bars, with and without rich; durations."""

import io
import json
import sys

import pytest
from django.core.management.base import OutputWrapper

from django_jobchains.cli import screen
from django_jobchains.cli.screen import Cell, Column, Screen, shortened
from django_jobchains.text.humanize import age, span
from django_jobchains.text.redaction import MASK

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


def test_without_rich_nothing_is_cut_or_painted(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert lines(5, is_painted=True) == lines(None)
    assert written(lambda screen: screen.line("x" * 99, "error", begin="! "), 5, is_painted=True) == ["! " + "x" * 99]


def test_every_text_is_redacted_and_without_control_characters_or_markup(any_width):
    text = "a\x1b[31m [bold] :smile: password=hunter2"
    shown = "a [31m [bold] :smile: password=********"
    assert written(lambda screen: screen.line(text, begin=text), any_width) == [shown * 2]
    assert written(lambda screen: screen.heading(text), any_width) == [shown]
    assert written(lambda screen: screen.lines(text), any_width) == [shown]
    assert lines(any_width, [[text, "", "", ""]])[1] == shown
    [shown] = written(lambda screen: screen.json({"x": text}), any_width)
    assert "hunter2" not in shown
    assert "\x1b" not in shown


def test_sentences_are_not_redacted_as_names_with_values(any_width):
    text = "token-mails: at most 3 \x1b at once."
    shown = "token-mails: at most 3   at once."
    assert written(lambda screen: screen.sentence(text, begin="! "), any_width) == [f"! {shown}"]
    [shown] = written(lambda screen: screen.json({"token": "hunter2"}, text=text), any_width)
    assert json.loads(shown) == {"token": MASK, "text": text}


@pytest.mark.parametrize(
    ("form", "seconds", "expected"),
    [
        (span, -1, "0 ms"), (span, 0.0004, "0 ms"), (span, 0.85, "850 ms"), (span, 0.9996, "1.0 s"),
        (span, 4.24, "4.2 s"), (span, 9.96, "10 s"), (span, 59.6, "1 min"), (span, 185, "3 min 5 s"),
        (span, 3_600, "1 h"), (span, 7_500, "2 h 5 min"), (span, 187_200, "2 d 4 h"),
        (age, -5, "0 s"), (age, 0.9, "0 s"), (age, 59, "59 s"), (age, 60, "1 min"), (age, 7_199, "119 min"),
        (age, 7_200, "2 h"), (age, 172_800, "2 d"), (age, 10**8, "1,157 d"),
    ],
)  # fmt: skip
def test_a_duration_has_at_most_two_units_and_an_age_one(form, seconds, expected):
    assert form(seconds) == expected


def test_a_long_value_is_shortened_to_one_line():
    assert shortened({"a": 1}) == '{"a": 1}'
    assert shortened("x" * 500).endswith("… (502 characters)")


@pytest.mark.parametrize(
    ("stream", "delay_seconds", "is_drawn"),
    [(_Terminal, 0, True), (io.StringIO, 0, False), (_Terminal, 60, False)],
    ids=["on a terminal", "in other output", "if the operation is fast"],
)
@pytest.mark.parametrize("has_rich", [True, False])
def test_when_a_progress_bar_is_drawn_and_removed(monkeypatch, stream, delay_seconds, is_drawn, has_rich):
    monkeypatch.setattr(screen, "PROGRESS_DELAY_SECONDS", delay_seconds)
    monkeypatch.setattr(sys, "stderr", out := stream())
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    wrapped = OutputWrapper(out)
    with Screen(wrapped, wrapped, "table", None, width=None, is_painted=False).progress("chains") as show:
        show(1_500, 0.5)
    written = out.getvalue()
    if is_drawn and has_rich:
        assert "50%" in written
        assert "1,500 chains" in written
        assert written.endswith("\x1b[2K")
    else:
        assert written == ""
