"""The store does what a model of a few lines does, whatever is done to it in whatever order."""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Chains

pytestmark = pytest.mark.django_db

STEPS = 30
#: When a test fails it takes some time to find the shortest way to it.
shrinking = pytest.mark.timeout(900)


def settings_of(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        # A landing must not depend on chance; whoever develops looks further with each run.
        derandomize="CI" in os.environ,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow],
    )


@shrinking
def test_the_store_does_what_the_model_does() -> None:
    run_state_machine_as_test(Chains, settings=settings_of(10))


@pytest.mark.slow
@shrinking
def test_the_store_does_what_the_model_does_for_long() -> None:
    run_state_machine_as_test(Chains, settings=settings_of(100))
