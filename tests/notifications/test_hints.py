"""Encoding and decoding hints. Any client may write to a channel, so invalid input is ignored."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobchains.notifications import EVERY, KINDS, Hint, chain_finished, decode, encode, job_scheduled
from django_jobchains.notifications.hints import few

names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=200)
numbers = st.integers(0, 2**64 - 1).map("{:x}".format)


@given(names, st.none() | st.integers(1, 10**9 - 1), numbers)
def test_decoding_reverses_encoding(name, count, number):
    hint = Hint("job_scheduled", name, count, "" if count is None else number)
    for text in (encode(hint), encode(hint).encode()):
        decoded = decode("job_scheduled", text)
        assert decoded == hint
        assert (decoded.count, decoded.id) == (hint.count, hint.id)


@pytest.mark.parametrize("hint", [*(Hint(kind, EVERY) for kind in sorted(KINDS)), chain_finished(UUID(int=7))])
def test_hint_about_every_subject_or_an_id_is_decoded(hint):
    assert decode(hint.kind, encode(hint)) == hint


@given(st.text() | st.binary(), st.sampled_from(sorted(KINDS)))
def test_arbitrary_input_decodes_to_a_hint_or_none(text, kind):
    hint = decode(kind, text)
    assert hint is None or encode(hint) == (text if isinstance(text, str) else text.decode())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("job_scheduled", "0:1:shop.ship"),
        ("job_scheduled", "0001:1:shop.ship"),
        ("job_scheduled", "1:G:shop.ship"),
        ("job_scheduled", "1:" + "0" * 17 + ":shop.ship"),
        ("job_scheduled", "٣::shop.ship"),
        ("job_scheduled", "::" + "x" * 201),
        ("job_scheduled", "::a\nb"),
        ("job_scheduled", "9" * 100_000),
        ("job_scheduled", b"::\xff"),
        ("chain_finished", "::shop.ship"),
        ("chain_finished", f"::{UUID(int=7)}\n"),
        ("ownership_lost", "::{" + str(UUID(int=7)) + "}"),
    ],
)
def test_invalid_input_decodes_to_none(kind, text):
    assert decode(kind, text) is None


def test_hints_of_one_kind_and_subject_are_equal():
    assert len({job_scheduled("a", 1), job_scheduled("a", 2), job_scheduled("a")}) == 1


def test_hints_about_many_subjects_become_one_for_every_subject():
    hints = [job_scheduled(f"type.{number}") for number in range(1_000)]
    assert few(hints) == {job_scheduled(EVERY)}
    assert few(hints[:50]) == hints[:50]
