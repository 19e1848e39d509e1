"""Values are read back equal, from the database and by the handler."""

import math
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import JobType, Processors, Registry, RunningJob
from django_jobchains.worker import Worker
from tests.support.attempts import committed

anything: JobType[Any, Any] = JobType("anything")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda children: st.lists(children, max_size=5) | st.dictionaries(texts, children, max_size=5),
    max_leaves=20,
)
in_the_database = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

LARGE = [
    sign * float(f"{digits}e{exponent}")
    for sign in (1, -1)
    for digits in ("1", "1.7")
    for exponent in range(15, 309, 7)
]


def same(one: Any, other: Any) -> bool:
    """Return whether both are equal and of the same types: 1, 1.0 and True are three values in JSON."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def read_back(value: Any) -> Any:
    return Job.objects.get(pk=anything.enqueue(value).id).input


@pytest.mark.django_db
@in_the_database
@given(values)
@example(1e16)
@example(["1e16", 1e16, {"1e+22": 1e22}])
@example(["\\", '\\"1e16', 1e16, '"', 2e20])
@example([0.0, 1.0, 1, True, 1e-7, 5e-324, 2**53 + 1])
def test_any_json_is_read_back_with_the_same_types_of_numbers(value):
    assert same(read_back(value), value)


@pytest.mark.django_db
def test_extreme_numbers_are_read_back_equal():
    """jsonb returns 1e+23 as an integer, for example."""
    floats = [1.7976931348623157e308, -1.7976931348623157e308, 2.2250738585072014e-308, 5e-324, 9999999999999998.0]
    extremes = [*LARGE, *floats, 10**16, 2**63, -(2**64), 10**400]
    assert same(read_back(extremes), extremes)


@pytest.mark.django_db
def test_texts_that_look_like_numbers_stay_texts():
    odd = ["1e16", "1e+22", '"1e16"', "\\1e16", {"1e300": "-1e300"}, 1e300]
    assert same(read_back(odd), odd)


@committed
def test_handlers_and_readers_of_the_output_get_equal_values():
    given_ = {
        "floats": [*LARGE, 0.1, 1e-7, 1.0],
        "integers": [1, 10**30],
        "text": "ä\U0001f642\n\\",
        "none": None,
        "yes": True,
    }
    seen: list[Any] = []
    processors, registry = Processors(), Registry()

    @processors.register("echo")
    def echo(job: RunningJob[Any]) -> Any:
        seen.append(job.input)
        return job.input

    registry.add(processors)
    chain = echo.enqueue(given_)
    Worker(slots=1, registry=registry).run_until_idle()
    assert same(seen, [given_])
    assert same(chain.refresh().output, given_)
    assert same(chain.input, given_)
    assert same(chains.get(chain.id).input, given_)


@pytest.mark.django_db
def test_payloads_are_stored_as_json():
    chain = anything.enqueue({"order": {"lines": [1, 2, 3]}})
    assert Job.objects.filter(input__order__lines__1=2).get().id == chain.id


@pytest.mark.postgresql
@pytest.mark.django_db
def test_a_large_float_is_a_float_in_sql():
    chain = anything.enqueue(1e23)
    with connection.cursor() as cursor:
        cursor.execute("SELECT input::text FROM django_jobchains_job WHERE id = %s", [chain.id])
        ((text,),) = cursor.fetchall()
    assert math.isclose(float(text), 1e23)
    assert "." in text
