"""The database of calls without ``using``: of ``use_database``, and in a handler, of its job."""

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import router

from django_jobchains import chains, current_database, queues, use_database
from django_jobchains.models import Chain, Job
from django_jobchains.processors import JobType, get_registry
from django_jobchains.testing import run_due_jobs
from tests.shop.models import Effect
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def ship(monkeypatch):
    ship = JobType("shop.ship")
    monkeypatch.setitem(get_registry().declared, "shop.ship", ship)
    return ship


def test_calls_in_the_block_use_its_database(other, ship):
    with use_database(other):
        assert current_database() == other
        chain = ship.enqueue()
        async_to_sync(chains.aenqueue)(ship)  # in this thread, whose connections are those of the fixture
        assert chain.using == other
        assert Job.objects.count() == 2
        assert chains.get(chain.id).status == "pending"
        chains.cancel(chain)
        queues.pause("mail")
    assert current_database() == "default"
    assert not Job.objects.exists()
    assert Chain.objects.using(other).get(pk=chain.id).status == "cancelled"


def test_using_takes_precedence(other, ship):
    with use_database(other):
        assert ship.enqueue(using="default").using == "default"


def test_an_unknown_alias_is_refused_at_once():
    refused = pytest.raises(ImproperlyConfigured, match=r"use_database\('nowhere'\): there is no such alias")
    with refused, use_database("nowhere"):
        pass


class FollowingRouter:
    """Sends business models to the current database."""

    def db_for_write(self, model, **hints):
        return current_database() if model._meta.app_label == "shop" else None

    db_for_read = db_for_write


def write(job, follow_up):
    Effect.objects.create(job_id=job.id, label=router.db_for_write(Effect))
    follow_up.enqueue()
    if job.input == "fails":
        raise ValueError("rolled back")


def plain(follow_up):
    def handler(job):
        with job.complete():
            write(job, follow_up)

    return handler


def asynchronous(follow_up):
    async def handler(job):
        await job.acomplete(lambda: write(job, follow_up))

    return handler


def batch(follow_up):
    def handler(jobs):
        with jobs.complete():
            write(jobs[0], follow_up)

    return handler


@pytest.mark.parametrize(("kind", "options"), [(plain, {}), (asynchronous, {}), (batch, {"batch_limit": 1})])
def test_a_handler_uses_the_database_of_its_job(other, ship, processors, start_worker, settings, kind, options):
    """What it enqueues and, with a router, its business rows are committed or rolled back together with its job."""
    settings.DATABASE_ROUTERS = [FollowingRouter()]
    work = processors.register("work.follow_up", max_attempts=1, **options)(kind(ship))
    start_worker(using=other)
    with use_database(other):
        done, failed = work.enqueue("works"), work.enqueue("fails")
        until(lambda: (done.refresh().status, failed.refresh().status) == ("completed", "failed"))
        assert Job.objects.filter(type_name="shop.ship").count() == 1
    effect = Effect.objects.using(other).get()
    assert (effect.job_id, effect.label) == (done.id, other)
    assert not Job.objects.exists()
    assert not Effect.objects.using("default").exists()


def test_the_testing_kit_runs_handlers_in_the_database_of_their_jobs(other, ship, processors):
    found = []
    enqueue = processors.register("work.where")(lambda job: found.append(current_database()))
    enqueue.enqueue(using=other)
    run_due_jobs(using=other)
    assert found == [other]
