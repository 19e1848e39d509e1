"""Managers use the database that ``JOBCHAINS["DATABASE"]`` names, unless ``using()`` selects another."""

import pytest
from django.apps import apps

from django_jobchains import chains
from django_jobchains.models import Chain, FailedAttempt, Job, JobBlocker
from django_jobchains.processors import JobType, get_registry

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

MODELS = list(apps.get_app_config("django_jobchains").get_models())


@pytest.fixture
def ship(monkeypatch):
    job_type = JobType("shop.ship")
    monkeypatch.setitem(get_registry().declared, "shop.ship", job_type)
    return job_type


@pytest.fixture
def _configured(other, settings):
    settings.JOBCHAINS = {"DATABASE": other}


@pytest.mark.usefixtures("_configured")
def test_managers_use_the_configured_database(other):
    for model in MODELS:
        for manager in (model.objects, model._default_manager):
            assert manager.all().db == manager.filter(pk__in=[]).order_by("pk").db == other
            assert manager.using("default").db == "default"
            assert list(manager.all()) == []


@pytest.mark.usefixtures("_configured")
def test_rows_and_relations_are_read_from_the_configured_database(ship, other):
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


def test_relations_stay_on_the_database_of_their_object(ship, other):
    chain = ship.enqueue(using=other)
    job = Job.objects.using(other).get()
    assert (job.failed_attempts.all().db, job.dependent_links.all().db) == (other, other)
    assert [found.id for found in Chain.objects.using(other).blocked_by(chain)] == []
    assert chain.refresh().using == chain.current_job._state.db == other
    assert FailedAttempt.objects.all().db == "default"


@pytest.fixture
def _refusing_router(settings):
    """A router that raises when it is called for a model of this app."""

    class RefusingRouter:
        def _refuse(self, model, **hints):
            if model._meta.app_label == "django_jobchains":
                raise AssertionError(f"A router was called for {model.__name__}.")

        db_for_read = db_for_write = _refuse

    settings.DATABASE_ROUTERS = [RefusingRouter()]


@pytest.mark.usefixtures("_refusing_router")
def test_deferred_reads_do_not_use_routers(ship, other):
    for alias in ("default", other):
        blocker = ship.enqueue({"of": alias}, using=alias)
        waiting = ship.enqueue(blockers=[blocker], using=alias)
        link = JobBlocker.objects.using(alias).get()
        chain = Chain.objects.using(alias).get(pk=blocker.id)
        deferred = Job.objects.using(alias).defer("input").get(pk=blocker.id)
        assert (link.job.id, link.blocker.id, chain.current_job.id) == (waiting.id, blocker.id, blocker.id)
        assert deferred.input == Chain.objects.using(alias).defer("input").get(pk=blocker.id).input == {"of": alias}
        for row in (link, link.job, link.blocker, chain, chain.current_job, deferred):
            row.refresh_from_db()
            assert row._state.db == alias


@pytest.mark.usefixtures("_refusing_router", "_configured")
def test_base_managers_do_not_use_routers(other):
    for model in MODELS:
        assert model._base_manager.all().db == other
        assert list(model._base_manager.all()) == []
