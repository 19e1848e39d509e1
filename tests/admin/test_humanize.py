"""Durations and numbers in the formats of a language, and on the terminal."""

import pytest
from django.utils import translation

from django_jobchains.text.humanize import age, ago, number, span


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", ("4.3 s", "1,234 d", "1,234", "in 3 min", "2 h ago")),
        ("de", ("4,3 s", "1.234 d", "1.234", "in 3 min", "vor 2 h")),
    ],
)
def test_numbers_follow_the_language_and_units_do_not(language, expected):
    with translation.override(language):
        assert (span(4.27), age(1234 * 86_400), number(1234), ago(-180), ago(7200)) == expected
