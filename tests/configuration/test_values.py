"""Durations, counts, numbers, names and choices: what each accepts, and the message for everything else."""

import math
import threading
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Annotated

import pytest

from django_jobchains.conf import Settings
from django_jobchains.db.times import resolve_expiry, resolve_schedule
from django_jobchains.declare.limits import Rate
from django_jobchains.declare.policies import Backoff, Lease, Policy, Retention, checked_backoff_seconds, to_lease
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.http_retries import retry_after
from django_jobchains.isolation import Isolation
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.values import (
    ANY_DURATION,
    FLAG,
    LONG_DURATION,
    MAX_SECONDS,
    PRIORITY,
    QUEUE,
    TYPE_NAME,
    Choice,
    Count,
    Duration,
    Number,
    Or,
    check_fields,
)

LONG_SECONDS = timedelta.max.total_seconds()
OR_TIMEDELTA = "seconds, a timedelta, or a text such as '5m'"

#: Each kind with what it expects, the values that it accepts, and others that it refuses.
KINDS = [
    (
        Duration(),
        f"a duration: pass more than 0 {OR_TIMEDELTA}",
        [5, 0.5, Decimal("0.5"), Fraction(1, 2), MAX_SECONDS],
        [0, -1, timedelta(0), timedelta(-1), math.nan],
    ),
    (Duration(least=0), f"a duration: pass 0 or more {OR_TIMEDELTA}", [0, 5], [-0.1, math.nan]),
    (Duration(least=-math.inf), f"a duration: pass {OR_TIMEDELTA}", [-5, 0, 5], [math.nan]),
    (LONG_DURATION, f"a duration: pass more than 0 {OR_TIMEDELTA}", [5, LONG_SECONDS], [0]),
    (ANY_DURATION, f"a duration: pass {OR_TIMEDELTA}", [-math.inf, 0, 5, math.inf], [math.nan]),
    (Or(ANY_DURATION, math.inf), f"a duration: pass {OR_TIMEDELTA}, or math.inf for no limit", [5], [math.nan]),
    (Or(Duration(), None), f"a duration: pass more than 0 {OR_TIMEDELTA}, or None", [5, None], [0]),
    (Count(), "a whole number from 1", [1, 10**9], [0, -1, 2.5, 1.0, "4", True, [4], math.inf, None]),
    (Count(0, 5), "a whole number from 0 to 5", [0, 5], [-1, 6]),
    (Or(Count(1, 9), math.inf), "a whole number from 1 to 9, or math.inf for no limit", [9, math.inf], [10, 0, "3"]),
    (PRIORITY, "a whole number from -32768 to 32767", [-32_768, 0, 32_767], [-32_769, 32_768, 1.5, True]),
    (Number(1), "a number from 1", [1, 2.5, math.inf], [0.5, math.nan, "2", True, timedelta(1)]),
    (Number(0, 1), "a number from 0 to 1", [0, 0.5, 1], [-0.1, 1.1, "a little"]),
    (QUEUE, "a name: pass 1 to 100 printable characters", ["m", "ü" * 100], ["", "x" * 101, "a\nb", "nul\0", 5, None]),
    (TYPE_NAME, "a name: pass 1 to 200 printable characters", ["x" * 200], ["x" * 201]),
    (Choice("wait", "fail"), "one of 'wait', 'fail'", ["fail"], ["", "WAIT", None, True]),
    (FLAG, "one of True, False", [True, False], [1, 0, None, "no", []]),
]  # fmt: skip
CASES = [(kind, expected, value) for kind, expected, _, refused in KINDS for value in refused]


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, _, accepted, _ in KINDS for value in accepted])
def test_accepted_values_are_returned(kind, value):
    assert kind.check("argument", value) == value


@pytest.mark.parametrize(("kind", "expected", "value"), CASES)
def test_the_error_for_another_value_names_the_argument_and_what_to_pass(kind, expected, value):
    with pytest.raises(ValueError, match=r"^argument=") as raised:
        kind.check("argument", value)
    assert str(raised.value) == f"argument={value!r:.100} is not {expected}."


@pytest.mark.parametrize("value", [math.inf, MAX_SECONDS + 1, 10**400, timedelta.max, "60000w"], ids=str)
def test_the_error_for_a_duration_that_is_too_long_names_the_limit(value):
    with pytest.raises(ValueError, match=r"^argument=.* is longer than a thousand years\.$"):
        Duration().check("argument", value)
    if value == math.inf:
        with pytest.raises(ValueError, match=r"^argument=inf is longer than a timedelta can be\.$"):
            LONG_DURATION.check("argument", value)


@pytest.mark.parametrize("value", ["", "5", "soon", "5x", "-5m", "5m-", "1e5d", b"5", b"5m", True, [5], None], ids=repr)
@pytest.mark.parametrize("kind", [Duration(), ANY_DURATION, Or(Duration(), math.inf)])
def test_only_numbers_timedeltas_and_texts_with_units_are_durations(kind, value):
    with pytest.raises(TypeError, match=r"^argument=.* is not a duration"):
        kind.check("argument", value)


def test_a_duration_is_returned_in_seconds():
    assert Duration().check("argument", timedelta(minutes=5)) == 300
    for text, expected in [
        ("250ms", 0.25),
        ("90s", 90),
        ("5m", 300),
        ("5 min", 300),
        ("1h30m", 5400),
        ("1d 12h", 129_600),
    ]:
        assert Duration().check("argument", text) == expected
    for given, seconds in [(10**400, math.inf), (Fraction(-(10**400)), -math.inf)]:
        assert ANY_DURATION.check("argument", given) == seconds


def asked_to_wait(seconds):
    response = SimpleNamespace(status_code=503, headers={"Retry-After": str(seconds)})
    error = Exception("unavailable")
    error.response = response
    return error


@pytest.mark.parametrize("seconds", [math.inf, timedelta.max, "40000w"], ids=repr)
def test_handlers_may_wait_for_ever(seconds):
    signal = AbortSignal()
    threading.Timer(0.05, signal.abort, ["cancelled"]).start()
    assert signal.wait(seconds) is True


@pytest.mark.parametrize("seconds", ["0.01 s", "10ms", timedelta(milliseconds=10), 0.01, -1], ids=repr)
def test_handlers_wait_for_any_duration(seconds):
    assert AbortSignal().wait(seconds) is False
    with pytest.raises(TypeError, match="seconds='soon' is not a duration"):
        AbortSignal().wait("soon")


@pytest.mark.parametrize(
    "seconds_of",
    [
        lambda given: Backoff(initial_seconds=given).initial_seconds,
        lambda given: Backoff(maximum_seconds=given).maximum_seconds,
        lambda given: Lease(given).seconds,
        lambda given: to_lease(given).seconds,
        lambda given: Retention(failed=given).seconds("failed"),
        lambda given: Policy(timeout=given).timeout_seconds,
        lambda given: checked_backoff_seconds(lambda failures, error: given, 1, None),
        lambda given: Rate(5, given).seconds,
        lambda given: Isolation("process", idle_ttl=given).idle_ttl,
        lambda given: Isolation("process", cpu_seconds=given).cpu_seconds,
        lambda given: Isolation("process", grace_seconds=given).grace_seconds,
        lambda given: retry_after(asked_to_wait(1_000), given),
        lambda given: Deduplicate("key", scope="any", window=given).seconds_after_creation,
        lambda given: resolve_schedule(None, given)[1],
        lambda given: resolve_expiry(given, None)[1],
        lambda given: Settings(TIMEOUT_SECONDS=given).TIMEOUT_SECONDS,
        lambda given: Settings(RETENTION_FAILED_SECONDS=given).RETENTION_FAILED_SECONDS,
        lambda given: Settings(POLL_SECONDS=given).POLL_SECONDS,
    ],
)
@pytest.mark.parametrize("given", [300, 300.0, Decimal(300), timedelta(minutes=5), "5m", "300 s"], ids=repr)
def test_every_duration_is_a_number_a_timedelta_or_a_text(seconds_of, given):
    assert seconds_of(given) == 300
    assert type(seconds_of(given)) in (int, float)


def test_none_stands_for_a_default():
    assert Count().check_or("argument", None, "default") == "default"
    with pytest.raises(ValueError, match="argument=0 is not a whole number"):
        Count().check_or("argument", 0, "default")


def test_fields_are_checked_and_converted():
    @dataclass(frozen=True)
    class Wait:
        seconds: Annotated[timedelta | float, Duration()]
        count: Annotated[int, Count()] = 3

        def __post_init__(self):
            check_fields(self, "Wait.{}")

    assert Wait(timedelta(minutes=1)).seconds == 60
    assert [repr(Wait(given).seconds) for given in (5, 5.0, Decimal(5))] == ["5", "5.0", "5.0"]
    with pytest.raises(ValueError, match=r"^Wait\.count=0 is not a whole number from 1\.$"):
        Wait(5, 0)
