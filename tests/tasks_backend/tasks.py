"""Tasks of the tests, for the backends of ``BACKENDS``."""

import os
import signal
import sys
import threading
from contextlib import nullcontext

from django.conf import settings
from django.test import override_settings

from django_jobchains.exceptions import RescheduleJob
from django_jobchains.models import Job
from django_jobchains.store import get_store
from django_jobchains.store.rows import FinishedJob
from django_jobchains.tasks_backend import framework
from tests.shop.models import Effect
from tests.tasks_backend.backends import BACKENDS

task = sys.modules[framework.Task.__module__].task

#: What tasks have done in this process.
calls = []
gate = threading.Event()


class PaymentError(Exception):
    pass


def with_backends():
    """Use the backends of the tests while tasks are declared. Worker processes use them anyway."""
    return nullcontext() if getattr(settings, "TASKS", None) == BACKENDS else override_settings(TASKS=BACKENDS)


with with_backends():

    @task
    def add(first, second=0):
        return first + second

    @task
    def note(label):
        calls.append(label)

    @task(queue_name="mail")
    def send(label):
        calls.append(label)

    @task
    def fail(message="no"):
        raise PaymentError(message)

    @task
    def fail_with_value_error():
        raise ValueError("a\nb")

    @task
    async def aadd(first, second=0):
        return first + second

    @task
    async def afail():
        raise PaymentError("no")

    @task(takes_context=True)
    def describe(context, *args, **kwargs):
        result = context.task_result
        return [context.attempt, result.id, result.worker_ids, args, kwargs]

    @task(takes_context=True)
    def refresh(context):
        context.task_result.refresh()
        return context.task_result.backend

    @task(takes_context=True)
    async def arefresh(context):
        await context.task_result.arefresh()
        return context.task_result.backend

    @task(takes_context=True, backend="patient")
    async def adescribe(context):
        if context.attempt < 2:
            raise PaymentError("not yet")
        return [context.attempt, len(context.task_result.errors)]

    @task(backend="patient", takes_context=True)
    def fail_twice(context):
        if context.attempt < 3:
            raise PaymentError(f"attempt {context.attempt}")
        return context.task_result.worker_ids

    @task
    def enqueue_another():
        note.enqueue("another")

    @task
    def return_object():
        return object()

    @task
    def return_tuple():
        return ("a", b"b", {"c": (1,)})

    @task
    def echo(value):
        return value

    @task
    def return_keys():
        return {1: {None: [{1.5: True, False: 2, b"b": 3}]}}

    @task
    def wait():
        calls.append("started")
        gate.wait(30)
        raise PaymentError("waited")

    @task
    def hold(key):
        calls.append(key)
        gate.wait(30)

    @task(takes_context=True)
    def sync(context, tenant, *numbers, region="eu", **more):
        return tenant

    @task(takes_context=True)
    def die_once(context):
        if context.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        Effect.objects.create(job_id=context.task_result.id, label="written")
        return context.attempt

    @task(takes_context=True)
    def reschedule_once(context):
        if context.attempt == 1:
            raise RescheduleJob(delay=0)

    @task(backend="isolated", takes_context=True)
    def die_after_commit(context):
        job = Job.objects.get(pk=context.task_result.id)
        get_store().attempts.finish([FinishedJob(job.pk, job.lease_number, '"committed"')])
        os.kill(os.getpid(), signal.SIGKILL)

    @task(backend="isolated")
    def pid():
        return os.getpid()

    @task(backend="isolated")
    def fail_elsewhere():
        raise PaymentError("elsewhere")


def note_end(task_result, **kwargs):
    Effect.objects.create(job_id=task_result.id, label=f"finished {task_result.status}")


if os.environ.get("DJANGO_SETTINGS_MODULE") == "tests.tasks_backend.worker_settings":
    framework.task_finished.connect(note_end)


def plain():
    return "plain"


with with_backends():
    renamed = task(plain)
