"""Managers read the database that ``JOBCHAINS["DATABASE"]`` names, unless ``using()`` says otherwise."""

from typing import Any

import pytest
from django.apps import apps

from django_jobchains import chains
from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.processors import JobType, get_registry

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> JobType[Any, Any]:
    job_type: JobType[Any, Any] = JobType("shop.ship")
    monkeypatch.setitem(get_registry().declared, "shop.ship", job_type)
    return job_type


@pytest.fixture
def _configured(other: str, settings: Any) -> None:
    settings.JOBCHAINS = {"DATABASE": other}


@pytest.mark.parametrize("model", list(apps.get_app_config("django_jobchains").get_models()))
@pytest.mark.usefixtures("_configured")
def test_every_manager_belongs_to_the_configured_database(model: Any, other: str) -> None:
    for manager in (model.objects, model._default_manager):
        assert manager.all().db == manager.filter(pk__in=[]).order_by("pk").db == other
        assert manager.using("default").db == "default"
        assert list(manager.all()) == []


@pytest.mark.usefixtures("_configured")
def test_rows_and_what_they_refer_to_are_read_there(ship: JobType[Any, Any], other: str) -> None:
    chain = ship.enqueue(using=other)
    first = Chain.objects.get()
    assert (first.id, first.using, first.current_job.id, [job.id for job in first.jobs]) == (
        chain.id,
        other,
        chain.id,
        [chain.id],
    )
    assert chains.get(chain.id).refresh().using == Chain().using == other
    assert Job.objects.get().failed_attempts.all().db == other
    assert list(Job.objects.blocked_by(chain)) == list(Chain.objects.blocked_by(chain)) == []
    assert [job.id for job in Job.objects.prefetch_related("failed_attempts", "blocker_links")] == [chain.id]
    assert not Job.objects.using("default").exists()


def test_an_object_of_another_database_stays_with_it(ship: JobType[Any, Any], other: str) -> None:
    chain = ship.enqueue(using=other)
    job = Job.objects.using(other).get()
    assert (job.failed_attempts.all().db, job.dependent_links.all().db) == (other, other)
    assert [found.id for found in Chain.objects.using(other).blocked_by(chain)] == []
    assert chain.refresh().using == chain.current_job._state.db == other
    assert FailedAttempt.objects.all().db == "default"
