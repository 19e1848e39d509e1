"""The pytest fixture ``jobchains``: the functions of ``testing`` and its ``clock``."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

# This must precede the import of the contracts, so that failing asserts show their values.
pytest.register_assert_rewrite("django_jobchains.testing.contracts")

if TYPE_CHECKING:
    from django_jobchains.testing import Clock


class Jobchains(SimpleNamespace):
    run_due_jobs: Any
    fire_schedules: Any
    assert_enqueued: Any
    clock: "Clock"


@pytest.fixture
def jobchains(db: None) -> Iterator[Jobchains]:
    """The testing functions, with a database from pytest-django. Due jobs run when the test runs them."""
    from django_jobchains import testing

    with testing.clock() as clock:
        yield Jobchains(
            run_due_jobs=testing.run_due_jobs,
            fire_schedules=testing.fire_schedules,
            assert_enqueued=testing.assert_enqueued,
            clock=clock,
        )
