"""A text that is too long to be stored is redacted before it is shortened."""

import pytest

from django_jobchains.text import errors
from django_jobchains.text.errors import MAX_BYTES, clean
from django_jobchains.text.redaction import redacted_text

SECRET = "hunter2"


@pytest.mark.parametrize("filling", ["x" * MAX_BYTES, "x" * 1_000_000, "\U0001f642" * (MAX_BYTES // 2)])
@pytest.mark.parametrize(
    "text",
    [
        "login(token='{}')",
        "token={}",
        "redis://:{}@localhost:6379",
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
        '["Authorization", "{}"]',
    ],
)
def test_a_long_secret_is_not_separated_from_its_name(text, filling):
    assert SECRET not in redacted_text(clean(text.format(filling + SECRET)))


def test_the_text_after_a_long_secret_is_kept_and_a_short_text_unchanged():
    stored = clean(f"login(token='{'x' * MAX_BYTES}')\nValueError: declined")
    assert stored == "login(token='********')\nValueError: declined"
    assert clean(f"token={SECRET}") == f"token={SECRET}"


def test_the_part_of_a_very_long_text_that_is_not_redacted_is_omitted(monkeypatch):
    monkeypatch.setattr(errors, "_MAX_REDACTED", 100_000)
    text = f"said: token='{'x' * 200_000}{SECRET}'"
    assert clean(text) == f"said: token='********\n… {len(text) - 100_000} characters omitted …"
