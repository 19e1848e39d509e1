"""Anybody may write to a channel: what is no hint of ours is told from what is."""

from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobchains.notifications import EVERY, KINDS, Hint, HintKind, chain_finished, decode, encode, job_scheduled

names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=200)
numbers = st.integers(0, 2**64 - 1).map("{:x}".format)


@given(names, st.none() | st.integers(1, 10**9 - 1), numbers)
def test_a_hint_is_read_back_as_it_was_written(name: str, count: int | None, number: str) -> None:
    hint = Hint("job_scheduled", name, count, "" if count is None else number)
    for text in (encode(hint), encode(hint).encode()):
        found = decode("job_scheduled", text)
        assert found == hint
        assert found is not None
        assert (found.count, found.id) == (hint.count, hint.id)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_hint_about_any_of_its_kind(kind: HintKind) -> None:
    assert decode(kind, encode(Hint(kind, EVERY))) == Hint(kind, EVERY)


def test_a_chain_is_named_by_its_id() -> None:
    hint = chain_finished(uuid4())
    assert decode("chain_finished", encode(hint)) == hint


@given(st.text() | st.binary(), st.sampled_from(sorted(KINDS)))
def test_whatever_is_sent_it_is_a_hint_or_nothing(text: str | bytes, kind: HintKind) -> None:
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
        ("chain_finished", f"::{uuid4()}\n"),
        ("ownership_lost", "::{" + str(uuid4()) + "}"),
    ],
)
def test_junk_is_no_hint(kind: HintKind, text: str | bytes) -> None:
    assert decode(kind, text) is None


def test_hints_of_one_kind_and_subject_are_equal() -> None:
    assert len({job_scheduled("a", 1), job_scheduled("a", 2), job_scheduled("a")}) == 1
