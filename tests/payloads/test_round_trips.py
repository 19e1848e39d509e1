"""Values are read back equal, from the database and by the handler."""

import math

import pytest
from django.db import connection
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import JobType
from tests.support.attempts import committed

anything = JobType("anything")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda children: st.lists(children, max_size=5) | st.dictionaries(texts, children, max_size=5),
    max_leaves=20,
)
#: jsonb returns 1e+23 as an integer, for example.
EXTREMES = [
    *(
        sign * float(f"{digits}e{exponent}")
        for sign in (1, -1)
        for digits in (1, 1.7)
        for exponent in range(15, 309, 7)
    ),
    *(1.7976931348623157e308, -1.7976931348623157e308, 2.2250738585072014e-308, 5e-324, 9999999999999998.0),
    *(10**16, 2**63, -(2**64), 10**400),
]


def same(one, other):
    """Return whether both are equal and of the same types: 1, 1.0 and True are three values in JSON."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


@pytest.mark.django_db
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values)
@example(EXTREMES)
@example(["1e16", "1e+22", '"1e16"', "\\1e16", {"1e300": "-1e300", "1e+22": 1e22}, 1e300])
@example(["\\", '\\"1e16', 1e16, '"', 2e20])
@example([0.0, 1.0, 1, True, 1e-7, 5e-324, 2**53 + 1])
def test_any_json_is_read_back_with_the_same_types_of_numbers(value):
    assert same(Job.objects.get(pk=anything.enqueue(value).id).input, value)


@committed
def test_handlers_and_readers_of_the_output_get_equal_values(processors, work):
    value = {"numbers": [*EXTREMES, 0.1, 1.0, 1], "text": "ä\U0001f642\n\\", "none": None, "yes": True}
    seen = []

    @processors.register("echo")
    def echo(job):
        seen.append(job.input)
        return job.input

    chain = echo.enqueue(value)
    work()
    assert same([*seen, chain.refresh().output, chain.input, chains.get(chain.id).input], [value] * 4)


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
