"""The store and a simple model of it do the same in random sequences of operations."""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Chains

pytestmark = pytest.mark.django_db

STEPS = 30
#: After a failure Hypothesis needs some time to find a short example.
shrinking = pytest.mark.timeout(900)


def settings_of(examples):
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        # CI must not depend on chance. Other runs try new examples each time.
        derandomize="CI" in os.environ,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow],
    )


@shrinking
def test_store_and_the_model_do_the_same():
    run_state_machine_as_test(Chains, settings=settings_of(10))


@pytest.mark.slow
@shrinking
def test_store_and_the_model_do_the_same_in_many_examples():
    run_state_machine_as_test(Chains, settings=settings_of(60))
