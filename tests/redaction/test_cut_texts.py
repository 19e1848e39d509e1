"""A text that is too long to be stored is redacted before it is cut."""

import pytest

from django_jobchains import texts
from django_jobchains.redaction import redacted_text
from django_jobchains.texts import MOST_BYTES, clean

SECRET = "hunter2"


@pytest.mark.parametrize("length", [MOST_BYTES, 1_000_000])
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
def test_the_end_of_a_long_secret_is_not_left_without_its_name(text: str, length: int) -> None:
    stored = clean(text.format("x" * length + SECRET))
    assert SECRET not in redacted_text(stored)


def test_also_when_only_its_bytes_are_too_many() -> None:
    stored = clean("token=" + "\U0001f642" * (MOST_BYTES // 2) + SECRET)
    assert SECRET not in redacted_text(stored)


def test_a_text_that_is_not_cut_is_stored_as_it_is() -> None:
    text = f"token={SECRET}"
    assert clean(text) == text


def test_what_stands_behind_a_long_secret_stays() -> None:
    stored = clean(f"login(token='{'x' * MOST_BYTES}')\nValueError: declined")
    assert stored == "login(token='********')\nValueError: declined"


def test_a_part_of_a_very_long_text_that_is_not_redacted_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_MAX_REDACTED", 100_000)
    text = f"said: token='{'x' * 200_000}{SECRET}'"
    assert clean(text) == f"said: token='********\n… {len(text) - 100_000} characters left out …"
