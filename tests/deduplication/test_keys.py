"""What may be a key, a scope, a window, an exclusion; what may not is an error before anything is written."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from django_jobchains.chains import Deduplicate
from django_jobchains.models import Job
from tests.deduplication.chains_at import KEY, ship, start

pytestmark = pytest.mark.django_db

#: Keys that some layer on the way could take for something else.
STRANGE_KEYS = [
    "0",
    "null",
    " ",
    "%s %(a)s %%",
    'it\'s "quoted" \\ ; --',
    '{"a": [1]}',
    "$.path[0]",
    "größe Ω 漢字 🎉",
    "e\u0301",
    "x" * 200,
    "🎉" * 200,
]


@pytest.mark.parametrize("scope", ["incomplete", "any"])
@pytest.mark.parametrize("key", STRANGE_KEYS)
def test_a_key_is_1_to_200_printable_characters_and_is_taken_as_it_is(key: str, scope: str) -> None:
    first = start(key=key, scope=scope)
    assert first.refresh().deduplication_key == key
    assert start(key=key, scope=scope).id == first.id
    assert not start(key="other", scope=scope).deduplicated


@pytest.mark.parametrize(
    ("key", "other"), [("a", "A"), ("a", "a "), ("\u00e9", "e\u0301"), ("1", "01"), ("1", "1.0"), ("a%", "ab")]
)
def test_keys_that_look_alike_are_different(key: str, other: str) -> None:
    assert start(key=key).id != start(key=other).id


@pytest.mark.parametrize("key", ["", "x" * 201, "nul\0", "new\nline", "\ud800", "a␟b", None, 7, b"bytes", ["list"]])
def test_another_key_is_an_error(key: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a deduplication key\. A key has 1 to 200 printable characters"):
        Deduplicate(key)


@pytest.mark.parametrize("scope", ["", "all", "ANY", None, True])
def test_another_scope_is_an_error(scope: Any) -> None:
    with pytest.raises(ValueError, match="'incomplete' or 'any'"):
        Deduplicate(KEY, scope=scope)


@pytest.mark.parametrize("window", [timedelta(0), timedelta(seconds=-1)])
def test_a_window_is_above_zero(window: timedelta) -> None:
    with pytest.raises(ValueError, match=r"window=.*a timedelta above 0"):
        Deduplicate(KEY, window=window)


@pytest.mark.parametrize("window", [5, 1.5, "5", True])
def test_a_window_is_a_timedelta(window: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"window"):
        Deduplicate(KEY, window=window)


def test_a_window_is_no_longer_than_databases_count() -> None:
    with pytest.raises(ValueError, match=r"window="):
        Deduplicate(KEY, window=timedelta.max)


@pytest.mark.parametrize("excluded", [["x"], [str(uuid4())], [None], ["x", uuid4()]])
def test_exclusions_are_ids(excluded: Any) -> None:
    with pytest.raises(TypeError, match=r"exclude_chain_ids expects a uuid\.UUID"):
        Deduplicate(KEY, exclude_chain_ids=excluded)


def test_exclusions_may_be_any_iterable_of_ids_chains_and_jobs() -> None:
    first = start()
    collections = ([first.id], (first.id,), {first.id}, frozenset([first.id]), {first.id: 1}.keys())
    for excluded in (*collections, (id_ for id_ in [first.id]), first.id, [first], [first.current_job]):
        chain = start(exclude_chain_ids=excluded)
        assert not chain.deduplicated
        Job.objects.filter(chain_id=chain.id).delete()


@pytest.mark.parametrize("deduplicate", [KEY, ("key", KEY), {"key": KEY}, True])
def test_deduplicate_is_a_deduplicate(deduplicate: Any) -> None:
    with pytest.raises(TypeError, match="Deduplicate"):
        ship.enqueue(deduplicate=deduplicate)
    assert not Job.objects.exists()
