"""Valid keys, scopes, windows and exclusions are accepted, and others raise an error before anything is written."""

from datetime import timedelta
from uuid import uuid4

import pytest

from django_jobchains.chains import Deduplicate
from django_jobchains.models import Job
from tests.deduplication.keyed_chains import KEY, SCOPES, ship, start

pytestmark = pytest.mark.django_db

#: Keys that SQL, JSON or Unicode normalization could change or misinterpret.
UNUSUAL_KEYS = [
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


@pytest.mark.parametrize("key", UNUSUAL_KEYS)
def test_key_is_1_to_200_printable_characters_and_is_stored_unchanged(key):
    first = start(key=key)
    assert first.refresh().deduplication_key == key
    assert [start(key=key, scope=scope).id for scope in SCOPES] == [first.id] * len(SCOPES)
    assert not start(key="other").deduplicated


@pytest.mark.parametrize(
    ("key", "other"), [("a", "A"), ("a", "a "), ("\u00e9", "e\u0301"), ("1", "01"), ("1", "1.0"), ("a%", "ab")]
)
def test_similar_keys_are_different(key, other):
    assert start(key=key).id != start(key=other).id


@pytest.mark.parametrize("key", ["", "x" * 201, "nul\0", "new\nline", "\ud800", "a␟b", None, 7, b"bytes", ["list"]])
def test_invalid_key_raises_an_error(key):
    with pytest.raises(ValueError, match=r"is not a deduplication key\. A key has 1 to 200 printable characters"):
        Deduplicate(key)


@pytest.mark.parametrize("scope", ["all", None])
def test_unknown_scope_raises_an_error(scope):
    with pytest.raises(ValueError, match=r"scope=.* is not one of 'incomplete', 'any', 'incomplete_or_recent'"):
        Deduplicate(KEY, scope=scope)


def test_incomplete_or_recent_requires_a_window():
    with pytest.raises(ValueError, match="needs a window: pass for example window="):
        Deduplicate(KEY, "incomplete_or_recent")


@pytest.mark.parametrize("window", [timedelta(0), timedelta(seconds=-1)])
def test_window_must_be_above_zero(window):
    with pytest.raises(ValueError, match=r"window=.*a timedelta above 0"):
        Deduplicate(KEY, window=window)


@pytest.mark.parametrize("window", [5, 1.5, "5", True])
def test_window_must_be_a_timedelta(window):
    with pytest.raises((TypeError, ValueError), match=r"window"):
        Deduplicate(KEY, window=window)


def test_window_must_fit_into_the_dates_of_the_database():
    with pytest.raises(ValueError, match=r"window="):
        Deduplicate(KEY, window=timedelta.max)


@pytest.mark.parametrize("excluded", [["x"], [str(uuid4())], [None], ["x", uuid4()]])
def test_exclusions_must_be_ids(excluded):
    with pytest.raises(TypeError, match=r"exclude_chain_ids expects a uuid\.UUID"):
        Deduplicate(KEY, exclude_chain_ids=excluded)


def test_exclusions_may_be_any_iterable_of_ids_chains_and_jobs():
    first = start()
    collections = ([first.id], (first.id,), {first.id}, frozenset([first.id]), {first.id: 1}.keys())
    for excluded in (*collections, (id_ for id_ in [first.id]), first.id, [first], [first.current_job]):
        chain = start(exclude_chain_ids=excluded)
        assert not chain.deduplicated
        Job.objects.filter(chain_id=chain.id).delete()


@pytest.mark.parametrize("deduplicate", [KEY, ("key", KEY), {"key": KEY}, True])
def test_deduplicate_must_be_an_instance_of_deduplicate(deduplicate):
    with pytest.raises(TypeError, match="Deduplicate"):
        ship.enqueue(deduplicate=deduplicate)
    assert not Job.objects.exists()
