"""Handlers that run in a child process, and act as the name of their record requests."""

import asyncio
import os
import signal
from contextlib import contextmanager
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from django_jobchains import pools
from django_jobchains.isolation import Isolation
from django_jobchains.middleware import Middleware
from django_jobchains.models import WorkerPresence
from django_jobchains.processors import Processors, RescheduleJob
from django_jobchains.records import NonRetryable, RecordProcessor
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import AttemptAbandoned
from tests.records.models import LETTER_COLUMNS, Export, Letter
from tests.shop.models import Effect
from tests.support.waiting import until

HOUR = timedelta(hours=1)


def note(record, step):
    """Store which process made a step of an attempt."""
    Effect.objects.create(job_id=record.pk, label=f"{step} {os.getpid()}")


class Noting(Middleware):
    @contextmanager
    def around_handler(self, job):
        note(job.record, "around")
        yield


def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)


def commit(record, run):
    with run.complete():
        note(record, "written")


def commit_and_die(record, run):
    with run.complete():
        note(record, "written")
        transaction.on_commit(die)


def log(record, run):
    run.add_log("convert", ["convert", "a.tif"], exit_code=0)
    if run.attempt == 1:
        die()


def save(record, run):
    run.add_log("convert", ["convert", "a.tif"], exit_code=0)
    record.name = "saved"
    record.save()


def hang(record, run):
    note(record, "hanging")
    while True:
        pass


def fail(record, run):
    raise NonRetryable("no such file")


def requeue(record, run):
    run.requeue(after=timezone.now() + HOUR)


def reschedule(record, run):
    raise RescheduleJob(delay="1h")


def commit_requeue(record, run):
    """Stay in a hook of the commit until the test lets it go on. Note then whether the attempt was asked to stop."""

    def linger():
        # Messages are received in order: when the worker shows this one, it has received all earlier ones.
        worker = WorkerPresence.objects.get().id
        report(AttemptAbandoned(worker, "marker", str(record.pk), kind="record"))
        until(lambda: Effect.objects.filter(label="go on 0").exists(), 60)
        note(record, f"asked to stop: {run.signal.reason}")

    with run.complete():
        run.requeue(after=timezone.now() + HOUR)
        transaction.on_commit(linger)


WAYS = {
    "return": lambda record, run: None,
    "die": die,
    "commit": commit,
    "commit and die": commit_and_die,
    "log": log,
    "save": save,
    "hang": hang,
    "fail": fail,
    "requeue": requeue,
    "reschedule": reschedule,
    "commit requeue": commit_requeue,
    "send": lambda record, run: pools.send({"page": 1}),
}

processors = Processors(
    isolation=Isolation("process", max_workers=2, grace_seconds=0.4, strict=True), middleware=[Noting()]
)
OPTIONS = {
    "max_attempts": 2,
    "retry_after": 0.1,
    "poll_every": 0.1,
    "stalled_after": 30,
    "cancel_every": 0.1,
}


@processors.records(Export, max_runtime=6, **OPTIONS)
class Convert(RecordProcessor[Export]):
    def pre_handle(self, record):
        note(record, "pre")

    def handle(self, record, run):
        note(record, "handle")
        WAYS[record.name](record, run)

    def post_handle(self, record):
        note(record, "post")


processors.records(Export, "unlimited.export", **OPTIONS)(Convert)

transients = Processors(isolation=Isolation("transient", grace_seconds=0.4, strict=True), middleware=[Noting()])
transients.records(Export, "transient.export", max_runtime=6, **OPTIONS)(Convert)

letters = Processors(isolation=Isolation("process", grace_seconds=0.4))


@letters.records(Letter, columns=LETTER_COLUMNS, poll_every=0.1, stalled_after=3)
async def send(letter, run):
    while letter.code == "hang":
        pass
    entry = await run.aadd_log("send", "sendmail")
    await asyncio.sleep(0.01)
    await entry.aupdate(out=str(os.getpid()), exit_code=0)
    await run.acomplete(lambda: None)
