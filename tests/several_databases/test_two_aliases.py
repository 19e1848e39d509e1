"""Two aliases for one database: a worker whose handlers would write through the other alias does not start."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection

from django_jobchains import chains
from django_jobchains.db.ids import new_id
from django_jobchains.models import Job
from tests.records.models import Upload
from tests.shop.models import Effect
from tests.support.databases import database
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

SAME = "using='direct' and 'default' are the same database, but DATABASE_ROUTERS send writes of"


@pytest.fixture(autouse=True)
def _direct(transactional_db, django_db_blocker):
    """The alias ``direct``, another name for the database of the test."""
    with database("direct", {}, django_db_blocker):
        yield


@pytest.fixture(autouse=True)
def _has_work(processors):
    @processors.register("work.write")
    def write(job):
        with job.complete():
            Effect.objects.create(job_id=job.id, label=f"attempt {job.attempt}")
            if job.attempt == 1:
                raise ValueError("no")

    @processors.records(Upload, poll_every=0.02, retry_after=0)
    def convert(record, run):
        with run.complete():
            Effect.objects.create(job_id=new_id(), label=f"record {run.attempt}")
            if run.attempt == 1:
                raise ValueError("no")


class Router:
    """A router of worker processes. ``alias_of``: returns the alias of a model, or None."""

    def __init__(self, alias_of, write_alias_of=None):
        self._alias_of = alias_of
        self._write_alias_of = write_alias_of or alias_of

    def db_for_read(self, model, **hints):
        return self._alias_of(model)

    def db_for_write(self, model, **hints):
        return self._write_alias_of(model)


TO_DIRECT = Router(lambda model: "direct")
ONLY_EFFECTS = Router(lambda model: "direct" if model is Effect else None)


@pytest.mark.parametrize("routers", [[], [ONLY_EFFECTS]], ids=["no router", "a router for some models"])
def test_worker_of_another_alias_for_the_database_of_the_models_does_not_start(make_worker, settings, routers):
    settings.DATABASE_ROUTERS = routers
    worker = make_worker(using="direct")
    for start in (worker.check_database, worker.start):
        with pytest.raises(ImproperlyConfigured, match=SAME):
            start()
    with pytest.raises(CommandError, match=SAME):
        call_command("run_jobworker", database="direct", burst=True)
    settings.JOBCHAINS = {"DATABASE": "direct"}
    with pytest.raises(ImproperlyConfigured, match=SAME):
        make_worker().start()


def test_router_that_sends_all_models_to_the_worker_keeps_writes_in_the_transaction(start_worker, settings):
    settings.DATABASE_ROUTERS = [TO_DIRECT]
    chain = chains.enqueue("work.write", using="direct")
    upload = Upload.objects.create()
    start_worker(using="direct")
    until(lambda: Upload.objects.filter(state="completed").exists() and not Job.objects.using("direct").incomplete())
    assert sorted(Effect.objects.values_list("label", flat=True)) == ["attempt 2", "record 2"]
    assert (chain.using, upload._state.db) == ("direct", "direct")


@pytest.mark.postgresql
def test_alias_with_another_time_zone_is_the_same_database(make_worker):
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'Asia/Tokyo'")
    try:
        with pytest.raises(ImproperlyConfigured, match=SAME):
            make_worker(using="direct").start()
    finally:
        connection.close()


@pytest.mark.postgresql
def test_alias_of_another_schema_is_another_database(make_worker, django_db_blocker, caplog):
    """Its search_path leads to other tables."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant; CREATE TABLE tenant.django_jobchains_job (id integer)")
    try:
        with database("tenant", {"OPTIONS": {"options": "-c search_path=tenant"}}, django_db_blocker):
            make_worker(using="tenant").start()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA tenant CASCADE")
    assert "cannot be checked" not in caplog.text


def without_tenant(model):
    raise RuntimeError("there is no tenant")


@pytest.mark.postgresql
@pytest.mark.parametrize(
    "router",
    [Router(lambda model: "away"), Router(lambda model: "direct", without_tenant)],
    ids=["unavailable", "needs a context"],
)
def test_what_cannot_be_compared_is_logged(make_worker, django_db_blocker, caplog, settings, router):
    settings.DATABASE_ROUTERS = [router]
    with database("away", {"HOST": "127.0.0.1", "PORT": "1"}, django_db_blocker):
        make_worker(using="direct").check_database()
    assert "The aliases that DATABASE_ROUTERS use cannot be checked: " in caplog.text
