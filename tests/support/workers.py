"""A registry for each test, workers that end with the test, and the events that they report."""

from django_jobchains.models import Job
from django_jobchains.store import get_store
from django_jobchains.worker.options import WorkerContext, WorkerOptions
from tests.support.waiting import until


class Events:
    def __init__(self):
        self.all = []

    def __call__(self, event):
        self.all.append(event)

    def of(self, kind):
        return [event for event in self.all if isinstance(event, kind)]


def completed(**filters):
    """Return the number of completed jobs."""
    return Job.objects.with_status("completed").filter(**filters).count()


def context_for(store=None, **options):
    """Return what the components of a worker share, for a component that a test creates itself."""
    return WorkerContext(WorkerOptions("worker-1", store or get_store(), **options))


def time_out(worker, line="gate.wait(30)"):
    """End the timeout of an attempt whose handler is at this line. The timeouts of other attempts are not changed."""
    pools = worker.components.pools

    def find():
        attempts = [(pool, attempt) for pool in pools for attempt in pool.attempts() if attempt.expires_at]
        return next((attempt for pool, attempt in attempts if line in pool.stack_of(attempt)), None)

    until(find).expires_at = 0.0
