"""Inputs, outputs and errors are read back equal."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_jobchains.payloads.strict_json import decode, encode
from django_jobchains.store import get_store
from tests.support.jobs import claim, create, failed_try, finished, new_job, running_job, stored

pytestmark = pytest.mark.django_db

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
json_values = st.recursive(
    scalars, lambda values: st.lists(values, max_size=6) | st.dictionaries(texts, values, max_size=6), max_leaves=25
)
#: All examples run in the transaction of the test.
examples = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def deep(levels):
    value = "bottom"
    for level in range(levels):
        value = [value] if level % 2 else {"below": value}
    return value


UNUSUAL = {
    "null": None,
    "null text": "null",
    "empty text": "",
    "empty object": {},
    "empty key": {"": {"": []}},
    "1e23": 1e23,
    "1e16": 1e16,
    "largest float": 1.797_693_134_862_315_7e308,
    "smallest float": 5e-324,
    "float that is whole": 1.0,
    "float of 17 digits": 0.1 + 0.2,
    "big integer": 2**200,
    "big negative integer": -(10**60),
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 \U0010ffff",
    "emoji as key": {"🔑": "🚪"},
    "combining": "e\u0301 é \u200b\u202e\ufeff\u2028\u2029",
    "control characters": "".join(map(chr, range(1, 32))) + "\x7f\x80",
    "quotes": "' \" \\ \\\\ \\u0041 \\u0000 %s %% %(a)s {} $1 ? :a -- /* ; \n",
    "text that looks like floats": 'a "1e+23" b 1e23',
    "quotes around floats": {'"1e+23': [1e23, '"', 1e24]},
    "99 deep": deep(99),
    "long text": "ä" * 100_000,
    "key order": {"b": 1, "a": 2, "aa": 3, "B": 4},
    "many keys": {f"key{number}": number for number in range(2_000)},
}


def same(left, right):
    """Compare values and types, so that 1, 1.0 and True differ."""
    if type(left) is not type(right) or left != right:
        return False
    if isinstance(left, list):
        return all(map(same, left, right))
    return not isinstance(left, dict) or all(same(left[key], right[key]) for key in left)


@pytest.mark.parametrize("value", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_input_and_output_are_read_back_equal(store, value):
    create(store, input=encode(value), context=encode(value))
    [job] = claim(store)
    assert same(decode(job.input), value)
    store.attempts.finish([finished(job, encode(value))])
    saved = stored(job)
    assert all(same(stored, value) for stored in (saved.input, saved.output, saved.context))


@examples
@given(st.lists(json_values, min_size=1, max_size=8))
@example([[1e23, -1e300, 1e16, 123456789012345680.0, -0.0]])
def test_inputs_and_outputs_of_a_batch_are_read_back_equal_and_do_not_mix(values):
    store = get_store()
    ids = [row.id for row in store.jobs.create([new_job(input=encode(value)) for value in values])]
    jobs = claim(store)
    assert [job.id for job in jobs] == ids
    assert all(same(decode(job.input), value) for job, value in zip(jobs, values, strict=True))
    store.attempts.finish([finished(job, encode([value])) for job, value in zip(jobs, values, strict=True)])
    saved = [stored(job) for job in jobs]
    assert all(same([job.input, job.output], [value, [value]]) for job, value in zip(saved, values, strict=True))


@examples
@given(texts, texts)
def test_any_error_text_is_stored_unchanged(error, traceback):
    store = get_store()
    job = running_job(store)
    store.attempts.reschedule([failed_try(job, error=error, traceback=traceback, delay_seconds=60)])
    saved = stored(job)
    failure = saved.failed_attempts.get()
    assert (saved.last_error, failure.error, failure.traceback) == (error, error, traceback)
