"""Our backend in place of Django's two, with what only Django's own tests use of these."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from asgiref.sync import sync_to_async
from django.db import connection

from django_jobchains import chains
from django_jobchains.models import Chain
from django_jobchains.tasks_backend import JobchainsBackend
from django_jobchains.testing.runner import run_due_jobs
from django_jobchains.worker import Worker


class DummyBackend(JobchainsBackend):
    """Our backend without a worker. ``results``: everything that was enqueued, as it is stored now."""

    def __init__(self, alias, params):
        super().__init__(alias, params)
        self.ids = {}

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        self.ids[result.id] = None
        return result

    async def aenqueue(self, task, args, kwargs):
        result = await super().aenqueue(task, args, kwargs)
        self.ids[result.id] = None
        return result

    def clear(self):
        chains.delete(Chain.objects.values_list("id", flat=True))
        self.ids.clear()

    @property
    def results(self):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self.read()
        with ThreadPoolExecutor(1) as pool:  # Django forbids queries on the thread of an event loop.
            return pool.submit(self.read_elsewhere).result()

    def read(self):
        return [self.get_result(id_) for id_ in self.ids]

    def read_elsewhere(self):
        try:
            return self.read()
        finally:
            connection.close()


class ImmediateBackend(JobchainsBackend):
    """Our backend, with a worker that runs the task before ``enqueue`` returns."""

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        run_now()
        result.refresh()
        return result

    async def aenqueue(self, task, args, kwargs):
        result = await super().aenqueue(task, args, kwargs)
        await sync_to_async(run_now)()
        await result.arefresh()
        return result


def run_now():
    """Run what is due: in a worker, or in the test's own transaction, which a worker does not see."""
    if connection.in_atomic_block:
        run_due_jobs()
    else:
        Worker(slots=1).run_until_idle()
