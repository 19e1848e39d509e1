from dataclasses import dataclass

import pytest

from django_jobchains import schedules
from django_jobchains.models import Schedule
from django_jobchains.processors import RunningJob
from tests.schedules.conftest import processors, time  # noqa: F401 - fixtures
from tests.support.jobs import database_now

#: The permissions of users who may do everything with schedules.
ALL = ("view_schedule", "add_schedule", "change_schedule", "delete_schedule", "pause_schedule", "run_schedule")


@dataclass(frozen=True)
class Report:
    kind: str
    days: int = 1


@pytest.fixture
def report(processors):  # noqa: F811 - the fixture
    @processors.register("shop.report")
    def report(job: RunningJob[Report]) -> None: ...

    return report


@pytest.fixture
def viewer(staff):
    """A client of a user who may view schedules, chains and payloads, and change nothing."""
    return staff("view_schedule", "view_payload")


@pytest.fixture
def of_code(report):
    """Return a function that stores a schedule of code, which is orphaned unless ``is_declared``."""

    def store(name="coded", *, is_declared=True):
        schedules.create(name, report, every=60, input=Report("day"))
        Schedule.objects.filter(pk=name).update(source="code", declarations="digest" if is_declared else "old")
        return schedules.get(name)

    return store


@pytest.fixture
def failing(report):
    """Return a schedule that is failing."""
    schedules.create("broken", report, every=60, input=Report("day"))
    Schedule.objects.filter(pk="broken").update(
        last_error="shop.errors.NoStock: canary4711 is missing", last_error_at=database_now()
    )
    return schedules.get("broken")
