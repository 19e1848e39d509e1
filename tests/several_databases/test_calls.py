"""Every call with ``using=`` affects only that database, even if another one has rows with the same ids."""

from datetime import timedelta
from io import StringIO

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import transaction

from django_jobchains import chains, limits, queues, testing
from django_jobchains.db.ids import new_id
from django_jobchains.declare import registry as registries
from django_jobchains.models import TaskName
from django_jobchains.monitoring import overview
from django_jobchains.processors import FailJob, JobType, Processors, get_registry
from tests.shop.models import Effect

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

READY, FAILS, LATER = "shop.ready", "shop.fails", "shop.later"


@pytest.fixture
def ids(other, monkeypatch):
    """The ids of a ready, a failed and a scheduled chain, which are the same on both databases."""
    part = Processors()
    monkeypatch.setattr(get_registry(), "slices", [*get_registry().slices, part])

    @part.register(READY)
    def ready(job):
        job.log("ran")
        return "done"

    @part.register(FAILS)
    def fails(job):
        raise FailJob("no")

    later = part.register(LATER)(lambda job: None)
    ids = {name: new_id() for name in (FAILS, READY, LATER)}
    for using in ("default", other):
        fails.enqueue(id=ids[FAILS], using=using)
        testing.run_due_jobs(using=using)
        ready.enqueue(id=ids[READY], using=using)
        later.enqueue(id=ids[LATER], using=using, delay=3600)
    return ids


def rows(using):
    models = apps.get_app_config("django_jobchains").get_models()
    return {model.__name__: list(model._base_manager.using(using).order_by("pk").values()) for model in models}


CHANGES = {
    "enqueue": lambda ids, using: chains.enqueue(READY, using=using),
    "enqueue_many": lambda ids, using: chains.enqueue_many([get_registry().job_type(READY).item()], using=using),
    "cancel": lambda ids, using: chains.cancel(ids[READY], using=using),
    "retry": lambda ids, using: chains.retry(ids[FAILS], using=using),
    "run_now": lambda ids, using: chains.run_now(ids[LATER], using=using),
    "reschedule": lambda ids, using: chains.reschedule(ids[LATER], delay=60, using=using),
    "delete": lambda ids, using: chains.delete(ids[READY], using=using),
    "prune": lambda ids, using: chains.prune(timedelta(0), ["failed"], using=using),
    "run_due_jobs": lambda ids, using: testing.run_due_jobs(using=using),
    "pause": lambda ids, using: queues.pause("default", using=using),
    "set_limit": lambda ids, using: queues.set_limit("default", 3, using=using),
    "limits.set": lambda ids, using: limits.set(queue="default", concurrency=2, using=using),
    "jobchains retry": lambda ids, using: command("retry", str(ids[FAILS]), database=using),
    "jobchains run-now": lambda ids, using: command("run-now", str(ids[LATER]), database=using),
    "jobchains cancel": lambda ids, using: command("cancel", str(ids[READY]), database=using),
    "jobchains complete": lambda ids, using: command("complete", str(ids[READY]), "--output", '"out"', database=using),
    "jobchains delete": lambda ids, using: command("delete", str(ids[READY]), database=using),
    "jobchains prune": lambda ids, using: command("prune", "--older-than=0s", "--status=failed", database=using),
    "jobchains pause": lambda ids, using: command("pause", "default", database=using),
    "jobchains limit": lambda ids, using: command("limit", "default", "3", database=using),
}


def command(*arguments, database):
    output = StringIO()
    call_command("jobchains", *arguments, f"--database={database}", stdout=output, no_color=True)
    return output.getvalue()


@pytest.mark.parametrize("name", CHANGES)
def test_write_changes_only_its_database(ids, other, settings, name):
    """This includes the alias that the settings name."""
    for changed, same in ((other, "default"), ("default", other)):
        settings.JOBCHAINS = {"DATABASE": other}
        before = rows(changed), rows(same)
        CHANGES[name](ids, changed)
        assert rows(changed) != before[0]
        assert rows(same) == before[1]


READS = {
    "get": lambda ids, using: chains.get(ids[READY], using=using).output,
    "wait": lambda ids, using: chains.wait(ids[READY], 1, using=using),
    "result": lambda ids, using: chains.get(ids[READY], using=using).result(1),
    "assert_enqueued": lambda ids, using: [job.status for job in testing.assert_enqueued(READY, using=using)],
    "overview": lambda ids, using: [(part.name, part.due) for part in overview(using).types],
    "overview queues": lambda ids, using: [(part.name, part.is_paused) for part in overview(using).queues],
    "limits": lambda ids, using: [limit.name for limit in limits.list(using=using)],
    "states": lambda ids, using: [state.name for state in queues.states(using=using)],
    "jobchains list": lambda ids, using: command("list", "--format=json", database=using),
    "jobchains show": lambda ids, using: command("show", str(ids[READY]), "--format=json", database=using),
    "jobchains status": lambda ids, using: command("queues", "--format=json", database=using),
}


@pytest.mark.parametrize("name", READS)
def test_read_depends_only_on_its_database(ids, other, name):
    """Results differ, because only one of the databases has been changed."""
    CHANGES["jobchains complete"](ids, other)
    queues.pause("mail", using=other)
    limits.set(queue="mail", concurrency=2, using=other)
    results = []
    for using in ("default", other):
        try:
            results.append(READS[name](ids, using))
        except chains.ChainTimeout as error:
            results.append(str(error))
    assert results[0] != results[1]


def test_the_list_of_types_has_the_tasks_of_its_database(other, registry, monkeypatch):
    found = []
    monkeypatch.setattr(registries, "load_task", lambda registry, name: found.append(name))
    TaskName.objects.using("default").create(name="shop.one")
    TaskName.objects.using(other).create(name="shop.two")
    registry.declared[READY] = JobType(READY)
    for using in ("default", other):
        command("types", database=using)
    assert found == ["shop.one", "shop.two"]


def test_each_database_has_its_own_test_clock(ids, other):
    with testing.clock(using=other) as clock:
        clock.advance(timedelta(hours=2))
        assert [outcome.job.type_name for outcome in testing.run_due_jobs(using=other)] == [READY, LATER]
        assert [outcome.job.type_name for outcome in testing.run_due_jobs()] == [READY]


def test_run_due_jobs_keeps_every_transaction_of_the_test_usable(other, processors):
    @processors.register(READY)
    def twice(job):
        Effect.objects.create(id=1, job_id=job.id, label="a")
        Effect.objects.create(id=1, job_id=job.id, label="a")

    with transaction.atomic(), transaction.atomic(using=other):
        twice.enqueue(using=other)
        [outcome] = testing.run_due_jobs(limit=1, using=other)
        assert outcome.error.startswith("IntegrityError")
        assert not Effect.objects.exists()


def test_run_due_jobs_runs_while_a_transaction_on_another_database_is_broken(other, processors):
    @processors.register(READY)
    def ready(job): ...

    ready.enqueue(using=other)
    with transaction.atomic():
        transaction.set_rollback(True)  # As after a database error.
        [outcome] = testing.run_due_jobs(using=other)
        assert outcome.ending == "completed"
