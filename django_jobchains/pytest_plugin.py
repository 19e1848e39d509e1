"""The pytest fixture ``jobchains``: ``run_due_jobs``, ``assert_enqueued`` and a ``clock``, from ``testing``."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

# Before anybody imports them: so that a failing one says what it compared.
pytest.register_assert_rewrite("django_jobchains.testing.contracts")

if TYPE_CHECKING:
    from django_jobchains.testing import Clock


class Jobchains(SimpleNamespace):
    run_due_jobs: Any
    assert_enqueued: Any
    clock: "Clock"


@pytest.fixture
def jobchains(db: None) -> Iterator[Jobchains]:
    """Chains in a test that has a database (of pytest-django): what is due runs when the test says so."""
    from django_jobchains import testing

    with testing.clock() as clock:
        yield Jobchains(run_due_jobs=testing.run_due_jobs, assert_enqueued=testing.assert_enqueued, clock=clock)
