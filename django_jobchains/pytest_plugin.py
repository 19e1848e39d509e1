"""The pytest fixture ``jobchains``: the functions of ``testing`` and its ``clock``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

# This must precede the import of the contracts, so that failing asserts show their values.
pytest.register_assert_rewrite("django_jobchains.testing.contracts")

if TYPE_CHECKING:
    from django_jobchains.testing import Clock


class Jobchains:
    """The type of the fixture ``jobchains``: functions of ``django_jobchains.testing``, and a clock to advance."""

    def __init__(self, clock: "Clock") -> None:
        from django_jobchains import testing  # Needs Django, which is set up after plugins are imported.

        self.clock = clock
        self.run_due_jobs = testing.run_due_jobs
        self.arun_due_jobs = testing.arun_due_jobs
        self.fire_schedules = testing.fire_schedules
        self.afire_schedules = testing.afire_schedules
        self.assert_enqueued = testing.assert_enqueued
        self.aassert_enqueued = testing.aassert_enqueued


@pytest.fixture
def jobchains(db: None) -> Iterator[Jobchains]:
    """The testing functions, with a database from pytest-django. Due jobs run when the test runs them."""
    from django_jobchains import testing

    with testing.clock() as clock:
        yield Jobchains(clock)
