"""Limits of job types: how they are declared, and the keys that are stored with jobs."""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from django_jobchains.declare.checks import check_registry
from django_jobchains.exceptions import InvalidDeclaration, InvalidInput, RegistryError
from django_jobchains.models import Job
from django_jobchains.processors import Concurrency, Deduplicate, Processors, Rate, RunningJob
from django_jobchains.store.rows import Effects
from django_jobchains.testing import run_due_jobs


@dataclass
class Sync:
    tenant_id: int
    name: str = ""


class SyncTuple(NamedTuple):
    tenant_id: int


def stored(chain):
    job = Job.objects.get(pk=chain.id)
    return job.limit_key, job.concurrency_key


@pytest.fixture
def register(processors):
    """Return a function that registers a type with the input ``Sync`` by default."""

    def register(name="limits.sync", input=Sync, **options):
        return processors.register(name, input=input, **options)(lambda job: None)

    return register


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": 0}, "limit=0 is not a whole number from 1"),
        ({"limit": -1}, "limit=-1 is not a whole number from 1"),
        ({"limit": 1.5}, r"limit=1\.5 is not a whole number from 1"),
        ({"limit": True}, "limit=True is not a whole number from 1"),
        ({"limit": 2**31}, "is not a whole number from 1 to 2147483647"),
        ({"limit": 1, "key": "tenant id"}, "key='tenant id' is not the name of a field"),
        ({"limit": 1, "key": 5}, "key=5: pass a plain function that takes one argument, the input"),
        ({"limit": 1, "key": lambda: 1}, "must take one argument, the input"),
        ({"limit": 1, "group": ""}, "group='' is not a name"),
        ({"limit": 1, "group": "a␟b"}, "group='a␟b' contains ␟"),
    ],
)
def test_invalid_limits_are_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Concurrency(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 60), "limit=0 is not a whole number from 1"),
        ((-5, 60), "limit=-5 is not a whole number from 1"),
        ((0.5, 60), r"limit=0\.5 is not a whole number from 1"),
        ((5,), "missing 1 required positional argument: 'per'"),
        ((5, None), "per=None is not a duration.*pass more than 0 seconds, a timedelta"),
        ((5, 0), "per=0 is not a duration"),
        ((5, timedelta(seconds=-1)), r"per=datetime\.timedelta.* is not a duration"),
        ((5, "60"), "per='60' is not a duration"),
        ((5, 60, 0), "burst=0 is not a whole number from 1"),
        ((5, 60, 1.5), r"burst=1\.5 is not a whole number from 1"),
        ((1, timedelta(days=365), 2_000), "burst=2000: this rate allows this many starts only after a thousand years"),
        ((5, 60, 1, "tenant id"), "key='tenant id' is not the name of a field"),
        ((5, 60, 1, None, "a␟b"), "group='a␟b' contains ␟"),
    ],
)
def test_invalid_rates_are_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Rate(*arguments)


@pytest.mark.parametrize(
    ("rate", "microseconds"),
    [(Rate(100, timedelta(minutes=1)), 600_000), (Rate(3, per=1), 333_334), (Rate(10**7, per=1), 1)],
)
def test_starts_are_no_closer_than_the_rate_allows(rate, microseconds):
    assert rate.start_rate == (microseconds, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 2}, r"concurrency=2 is not a Concurrency: pass Concurrency\(limit, key=…, group=…\)"),
        ({"rate": 2}, r"rate=2 is not a Rate: pass Rate\(limit, per, burst=…, key=…, group=…\)"),
        ({"rate": Concurrency(2)}, "is not a Rate"),
        ({"rate": Rate(2, 60, key="tenant")}, "'tenant' is the key of a limit, but not a field of the input"),
        ({"fair": 2}, "fair=2: pass a plain function"),
        ({"concurrency": Concurrency(2, key="tenant")}, "'tenant' is the key of a limit, but not a field of the input"),
        ({"fair": "tenant"}, "'tenant' is the key of a limit, but not a field of the input. It has tenant_id, name"),
        ({"fair": "tenant", "input": SyncTuple}, "It has tenant_id"),
        ({"fair": "tenant", "input": int}, "It has no fields"),
        ({"fair": "tenant", "input": str}, "It has no fields"),
    ],
)
def test_invalid_declarations_name_the_type(register, options, message):
    with pytest.raises(InvalidDeclaration, match=rf"'limits\.sync'.*{message}"):
        register(**options)


def test_keys_of_undeclared_inputs_are_accepted(register):
    register(input=Any, fair="tenant")
    register("limits.other", input=dict[str, int], fair="tenant")


@pytest.mark.parametrize("option", [{"concurrency": "2"}, {"rate": "2"}, {"fair": 1.5}])
def test_invalid_limits_of_slices_are_refused(option):
    with pytest.raises(RegistryError, match=r"Processors\(\): "):
        Processors(**option)


def test_types_of_a_group_need_the_same_limit(register, registry):
    register("limits.one", concurrency=Concurrency(2, group="gateway"))
    register("limits.two", concurrency=Concurrency(2, key="tenant_id", group="gateway"))
    assert list(registry.limit_problems()) == []
    register("limits.three", concurrency=Concurrency(3, group="gateway"))
    [error] = [error for error in check_registry() if error.id == "jobchains.E023"]
    assert error.msg == "'limits.one' and 'limits.three' share the group 'gateway', but have different limits: 2 and 3."


@pytest.mark.parametrize(
    "other", [Rate(3, 60, group="gateway"), Rate(2, 61, group="gateway"), Rate(2, 60, 5, group="gateway")]
)
def test_types_of_a_group_need_the_same_rate(register, registry, other):
    """A rate and a concurrency may have the same group."""
    register(
        "limits.one", rate=Rate(2, timedelta(minutes=1), group="gateway"), concurrency=Concurrency(9, group="gateway")
    )
    register("limits.two", rate=Rate(2, 60, key="tenant_id", group="gateway"))
    assert list(registry.limit_problems()) == []
    register("limits.three", rate=other)
    [error] = [error for error in check_registry() if error.id == "jobchains.E023"]
    expected = "'limits.one' and 'limits.three' share the group 'gateway', but have different rates: 2 per 60 s and "
    assert error.msg == f"{expected}{other}."


def test_a_type_without_limits_stores_no_keys(register):
    assert stored(register().enqueue(Sync(1))) == (None, None)


def test_keys_are_stored_with_the_job(register):
    sync = register(concurrency=Concurrency(2, key="tenant_id"))
    one, two, again = (stored(sync.enqueue(Sync(tenant))) for tenant in (1, 2, 1))
    assert one[1] == "limits.sync␟1"
    assert one == again
    assert one[0] != two[0]


def test_a_limit_without_a_key_counts_the_whole_type(register):
    sync = register(concurrency=Concurrency(2))
    assert stored(sync.enqueue(Sync(1))) == stored(sync.enqueue(Sync(2)))
    assert stored(sync.enqueue(Sync(1)))[1] == "limits.sync"


def test_groups_are_counted_by_their_name(register):
    one = register("limits.one", concurrency=Concurrency(2, key="tenant_id", group="gateway"))
    two = register("limits.two", concurrency=Concurrency(2, key=lambda given: given.tenant_id, group="gateway"))
    assert stored(one.enqueue(Sync(7)))[1] == stored(two.enqueue(Sync(7)))[1] == "gateway␟7"


def test_rate_keys_are_stored_with_the_job(register):
    sync = register(rate=Rate(2, 60, key="tenant_id"), concurrency=Concurrency(2, group="all"))
    chain = sync.enqueue(Sync(7))
    assert Job.objects.get(pk=chain.id).rate_key == "limits.sync␟7"
    assert stored(chain)[1] == "all"
    assert stored(chain)[0] != stored(sync.enqueue(Sync(8)))[0]
    other = register("limits.other", rate=Rate(2, 60, group="gateway"))
    assert Job.objects.get(pk=other.enqueue(Sync(1)).id).rate_key == "gateway"


def test_fair_keys_take_turns_and_are_not_counted(register):
    sync = register(fair="tenant_id")
    (one, counted), (two, _) = (stored(sync.enqueue(Sync(tenant))) for tenant in (1, 2))
    assert counted is None
    assert one != two


def test_a_limit_and_fairness_may_have_different_keys(register):
    sync = register(concurrency=Concurrency(2, key="name"), fair="tenant_id")
    found = [stored(sync.enqueue(Sync(*values))) for values in ((1, "a"), (2, "a"), (1, "b"))]
    assert [counted for _, counted in found] == ["limits.sync␟a", "limits.sync␟a", "limits.sync␟b"]
    assert len({turn for turn, _ in found}) == 3


@pytest.mark.parametrize("value", ["a", 5, 1.5, Decimal("1.5"), UUID(int=1)])
def test_keys_are_texts_numbers_or_uuids(register, value):
    sync = register(fair=lambda given: value)
    assert stored(sync.enqueue(Sync(1)))[0]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (lambda given: None, "has the key None, which is not a text, a number or a UUID"),
        (lambda given: True, "has the key True, which is not"),
        (lambda given: [1], r"has the key \[1\], which is not"),
        (lambda given: "", "has the key '': a key has 1 to 200 printable characters"),
        (lambda given: "a" * 201, "a key has 1 to 200 printable characters"),
        (lambda given: "a\0", "printable characters"),
        (lambda given: "a␟b", "and no ␟"),
        (lambda given: 1 / 0, "has no key for this input: ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("option", ["fair", "concurrency", "rate"])
def test_an_invalid_key_is_the_enqueuers_error(register, option, key, message):
    values = {"fair": key, "concurrency": Concurrency(1, key=key), "rate": Rate(1, 60, key=key)}
    sync = register(**{option: values[option]})
    with pytest.raises(InvalidInput, match=rf"'limits\.sync' .*{message}"):
        sync.enqueue(Sync(1))
    assert not Job.objects.exists()


def test_a_field_that_the_input_does_not_have_is_the_enqueuers_error(register):
    sync = register(input=dict[str, int], fair="tenant")
    with pytest.raises(InvalidInput, match="has no key for this input: KeyError"):
        sync.enqueue({"other": 1})
    assert stored(sync.enqueue({"tenant": 1}))[0]


def test_continuations_have_keys(register, processors):
    sync = register(concurrency=Concurrency(2, key="tenant_id"), entry=False)

    @processors.register("limits.first")
    def first(job: RunningJob[None]):
        return job.continue_with(sync, Sync(3))

    chain = first.enqueue()
    run_due_jobs()
    assert Job.objects.get(chain_id=chain.id, chain_index=1).concurrency_key == "limits.sync␟3"


def test_many_jobs_with_different_keys_are_inserted_together(register, store):
    sync = register(concurrency=Concurrency(2, key="tenant_id"))
    store.jobs.create([sync.item(Sync(number % 2)) for number in range(4)], Effects())
    assert (
        sorted(Job.objects.values_list("concurrency_key", flat=True)) == ["limits.sync␟0"] * 2 + ["limits.sync␟1"] * 2
    )


def test_a_replaced_input_has_its_own_keys(register):
    sync = register(concurrency=Concurrency(2, key="tenant_id"), rate=Rate(2, 60, key="tenant_id"))
    first = sync.enqueue(Sync(1), deduplicate=Deduplicate("key", replace=("input",)))
    before = stored(first)
    assert sync.enqueue(Sync(2), deduplicate=Deduplicate("key", replace=("input",))).id == first.id
    assert stored(first)[1] == "limits.sync␟2"
    assert stored(first)[0] != before[0]
    assert Job.objects.get(pk=first.id).rate_key == "limits.sync␟2"
    sync.enqueue(Sync(3), deduplicate=Deduplicate("key", replace=("run_at",)), delay=60)
    assert stored(first)[1] == "limits.sync␟2"
