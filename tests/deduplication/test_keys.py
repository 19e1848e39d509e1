"""Valid keys, tenants, windows and exclusions are accepted, and others raise an error before anything is written."""

from datetime import timedelta
from uuid import uuid4

import pytest

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.models import Chain, Job
from tests.deduplication.keyed_chains import KEY, SCOPES, continue_chain, finish, ship, start

pytestmark = pytest.mark.django_db

#: Keys that SQL, JSON or Unicode normalization could change or misinterpret.
UNUSUAL_KEYS = [
    "0",
    "null",
    " ",
    "%s %(a)s %%",
    'it\'s "quoted" \\ ; --',
    '{"a": [1]}',
    "größe Ω 漢字 🎉",
    "e\u0301",
    "x" * 200,
    "🎉" * 200,
]
#: Pairs of a tenant and a key that are similar.
SIMILAR = [
    (("", "a"), ("", "A")),
    (("", "a"), ("", "a ")),
    (("", "\u00e9"), ("", "e\u0301")),
    (("", "1"), ("", "1.0")),
    (("", "a%"), ("", "ab")),
    (("a", "b c"), ("a b", "c")),
    (("a", "b"), ("", "a/b")),
    (("a", "b"), ("", "ab")),
    (("a", "a"), ("", "a")),
    (("größe Ω 漢字 🎉", "a"), ("größe", "a")),
]


@pytest.mark.parametrize("key", UNUSUAL_KEYS)
def test_key_is_1_to_200_printable_characters_and_is_stored_unchanged(key):
    first = start(key=key)
    assert first.refresh().deduplication_key == key
    assert [start(key=key, scope=scope).id for scope in SCOPES] == [first.id] * len(SCOPES)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("pairs", SIMILAR)
def test_similar_pairs_of_tenant_and_key_are_different(pairs, scope):
    first, second = ([start(tenant=tenant, key=key, scope=scope) for _ in "xy"] for tenant, key in pairs)
    assert [chain.deduplicated for chain in (*first, *second)] == [False, True, False, True]
    assert first[0].id == first[1].id != second[0].id == second[1].id


def test_in_one_batch_each_tenant_has_its_own_chain():
    items = [ship.item(deduplicate=Deduplicate(KEY, tenant=tenant)) for tenant in ("a", "b", "", "a", "b", "")]
    created = chains.enqueue_many(items)
    assert [chain.deduplicated for chain in created] == [False] * 3 + [True] * 3
    assert [chain.id for chain in created[:3]] == [chain.id for chain in created[3:]]


def test_every_job_of_a_chain_has_the_tenant_and_the_key(store):
    chain = start(tenant="acme")
    continue_chain(store, chain)
    assert {job.deduplication_key for job in chain.jobs} == {"acme␟order-7"}
    assert Chain.objects.get(deduplication_key="acme␟order-7").id == start(tenant="acme").id == chain.id
    finish(store, chain)
    assert not start(tenant="acme").deduplicated


UNPRINTABLE = ("nul\0", "new\nline", "\ud800", "a␟b", None, 7, b"bytes")
ERRORS = [
    *(({"key": key}, r"is not a deduplication key\. A key has 1 to 200") for key in ("", "x" * 201, *UNPRINTABLE, [])),
    *(({"tenant": tenant}, r"tenant=.*: a string of printable characters without ␟") for tenant in UNPRINTABLE),
    ({"key": "k" * 100, "tenant": "t" * 100}, "are too long: together they have at most 199 characters"),
    *(({"scope": scope}, "scope=.* is not one of 'incomplete', 'any', 'incomplete_or_recent'") for scope in ("", None)),
    ({"scope": "incomplete_or_recent"}, "needs a window: pass for example window="),
    *(({"window": window}, r"window=.* is not a duration") for window in (timedelta(0), timedelta.max, -5)),
]


@pytest.mark.parametrize(("options", "message"), ERRORS)
def test_invalid_options_raise_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        Deduplicate(**{"key": KEY, **options})


def test_equal_windows_are_equal():
    assert len({Deduplicate(KEY, window=window) for window in ("5m", 300, timedelta(minutes=5))}) == 1


@pytest.mark.parametrize("excluded", [["x"], [uuid4().hex], [None], ["x", uuid4()]])
def test_exclusions_must_be_ids(excluded):
    with pytest.raises((TypeError, ValueError), match=r"exclude_chain_ids.* a uuid\.UUID, its string"):
        Deduplicate(KEY, exclude_chain_ids=excluded)


def test_exclusions_may_be_any_iterable_of_ids_chains_and_jobs():
    first = start()
    for excluded in (
        {first.id},
        {first.id: 1}.keys(),
        (id_ for id_ in [first.id]),
        first.id,
        str(first.id),
        [first],
        [first.current_job],
    ):
        chain = start(exclude_chain_ids=excluded)
        assert not chain.deduplicated
        Job.objects.filter(chain_id=chain.id).delete()


@pytest.mark.parametrize("deduplicate", [KEY, {"key": KEY}, True])
def test_deduplicate_must_be_an_instance_of_deduplicate(deduplicate):
    with pytest.raises(TypeError, match="Deduplicate"):
        ship.enqueue(deduplicate=deduplicate)
    assert not Job.objects.exists()
