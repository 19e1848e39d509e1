"""A worker with ``maintenance_only`` does the periodic tasks of all workers, and claims nothing."""

import signal
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.declare.policies import Retention
from django_jobchains.models import Job
from django_jobchains.monitoring import overview
from django_jobchains.processors import Processors
from django_jobchains.telemetry.events import BlockedJobsSwept, ThreadFailed
from tests.records.models import Upload
from tests.support.waiting import until
from tests.support.worker_app import jobs
from tests.worker.test_reaping import create_orphaned

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def start_maintenance(start_worker):
    return lambda: start_worker(maintenance_only=True, slots=None)


@pytest.fixture
def short_lived(registry, settings):
    """A type whose completed chains are deleted at once, beside a model of records."""
    settings.JOBCHAINS = {
        "REAP_SECONDS": 0.05, "SWEEP_SECONDS": 0.05, "PRUNE_SECONDS": 0.05, "HEARTBEAT_SECONDS": 0.05,
        "BACKOFF_INITIAL_SECONDS": 0.01,
    }  # fmt: skip
    part = Processors(retention=Retention(completed=0.01))
    registry.add(part)
    part.records(Upload, stalled_after=1)(lambda record, run: None)
    return part.register("worker.short_lived")(lambda job: job.attempt)


def test_maintenance_is_done_and_nothing_is_claimed(short_lived, start_maintenance, events):
    (orphan,) = create_orphaned(short_lived)
    due, old = short_lived.enqueue(), short_lived.enqueue()
    chains.complete(old.id, 1)
    stalled = Upload.objects.create(
        state="processing", lease_number=1, last_heartbeat_at=timezone.now() - timedelta(hours=1)
    )
    queued = Upload.objects.create()
    worker = start_maintenance()
    until(lambda: Job.objects.filter(pk=orphan.pk, status="pending", crashes=1).exists())
    until(lambda: Upload.objects.filter(pk=stalled.pk, state="queued", num_resets=1).exists())
    until(lambda: not Job.objects.filter(pk=old.id).exists())
    until(lambda: events.of(BlockedJobsSwept))
    queued.refresh_from_db()
    assert (due.refresh().status, queued.state, worker.claimed) == ("pending", "queued", 0)
    assert (worker.health().is_ready, worker.health().slots, worker.failed) == (True, 0, False)
    names = {thread.name.removeprefix("jobchains-") for thread in worker.components.threads.values()}
    assert names == {"claim-loop", "maintenance"}
    assert worker.stop() == 0
    assert events.of(ThreadFailed) == []


def test_worker_is_listed_as_maintenance_only(short_lived, start_maintenance, capsys):
    """It is not one of the workers that ``health`` requires, and its types and queues are empty."""
    short_lived.enqueue()
    start_maintenance()
    [listed] = until(lambda: overview().workers)
    assert (listed.is_maintenance_only, listed.slots, listed.type_names, listed.queues) == (True, 0, (), ())
    call_command("jobchains", "status")
    assert "maintenance only" in capsys.readouterr().out
    with pytest.raises(CommandError):
        call_command("jobchains", "health")
    assert "0 of 1 worker alive" in capsys.readouterr().out
    call_command("jobchains", "health", "--min-workers", "0")


@pytest.mark.parametrize(
    "options",
    [{"slots": 2}, {"async_slots": 2}, {"types": ["shop.*"]}, {"queues": ["mail"]}, {"burst": True}, {"max_jobs": 1}],
)
def test_arguments_about_handlers_are_refused(quick, make_worker, options):
    [argument] = options
    with pytest.raises(ImproperlyConfigured, match=rf"^Worker\(\): {argument}=.* with maintenance_only=True"):
        make_worker(**{"maintenance_only": True, "slots": None, **options})
    with pytest.raises(CommandError, match="has no effect with maintenance_only=True"):
        call_command("run_jobworker", maintenance_only=True, slots=2)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--processes", "1"]], ids=["one process", "a supervisor"])
def test_process_stops_after_sigterm(start_process, arguments):
    process = start_process("--maintenance-only", *arguments)
    process.until_output("maintenance only · database 'default'")
    chain = jobs.write.enqueue(0.0)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.output
    assert "Stopped: no jobs." in process.output
    assert chain.refresh().status == "pending"
