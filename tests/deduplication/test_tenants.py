"""Keys of different tenants never match, and the stored key contains the tenant."""

import pytest

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.models import Chain
from tests.deduplication.keyed_chains import KEY, continue_chain, finish, ship, start

pytestmark = pytest.mark.django_db

scopes = pytest.mark.parametrize("scope", ["incomplete", "any"])
tenants = pytest.mark.parametrize("tenant", ["acme", "größe Ω 漢字 🎉", " ", "a/b", "'\"%s\\"])


@scopes
@tenants
def test_tenants_have_separate_keys(tenant, scope):
    first = start(tenant=tenant, scope=scope)
    others = [start(scope=scope), start(tenant="globex", scope=scope), start(tenant=tenant + "x", scope=scope)]
    assert not any(chain.deduplicated for chain in (first, *others))
    assert len({chain.id for chain in (first, *others)}) == 4
    again = start(tenant=tenant, scope=scope)
    assert (again.id, again.deduplicated) == (first.id, True)


@scopes
@pytest.mark.parametrize(
    ("one", "other"),
    [(("a", "b c"), ("a b", "c")), (("a", "b"), ("", "a/b")), (("a", "b"), ("", "ab")), (("a", "a"), ("", "a"))],
)
def test_different_pairs_of_tenant_and_key_never_match(one, other, scope):
    created = [start(tenant=tenant, key=key, scope=scope) for tenant, key in (one, other)]
    assert not any(chain.deduplicated for chain in created)


def test_in_one_batch_each_tenant_has_its_own_chain():
    items = [ship.item(deduplicate=Deduplicate(KEY, tenant=tenant)) for tenant in ("a", "b", "", "a", "b", "")]
    created = chains.enqueue_many(items)
    assert [chain.deduplicated for chain in created] == [False] * 3 + [True] * 3
    assert [chain.id for chain in created[:3]] == [chain.id for chain in created[3:]]


def test_without_a_tenant_the_key_is_stored_unchanged():
    assert start(tenant="").refresh().deduplication_key == KEY


def test_every_job_of_a_chain_has_the_tenant_and_the_key(store):
    chain = start(tenant="acme")
    continue_chain(store, chain)
    assert {job.deduplication_key for job in chain.jobs} == {"acme␟order-7"}
    assert Chain.objects.get(deduplication_key="acme␟order-7").id == chain.id
    assert start(tenant="acme").id == chain.id
    finish(store, chain)
    assert not start(tenant="acme").deduplicated


@pytest.mark.parametrize("tenant", ["nul\0", "new\nline", "\ud800", "a␟b", None, 7, b"bytes"])
def test_invalid_tenant_raises_an_error(tenant):
    with pytest.raises(ValueError, match=r"tenant=.*: a string of printable characters without ␟"):
        Deduplicate(KEY, tenant=tenant)


def test_tenant_and_its_key_have_at_most_199_characters_together():
    chain = start(tenant="t" * 99, key="k" * 100)
    assert start(tenant="t" * 99, key="k" * 100).id == chain.id
    with pytest.raises(ValueError, match="are too long: together they have at most 199 characters"):
        Deduplicate("k" * 100, tenant="t" * 100)
