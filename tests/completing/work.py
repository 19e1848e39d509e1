"""Job types that are completed by hand, chains with every status, and recorders of rows and hints."""

from contextlib import contextmanager

from django.test import override_settings

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.notifications import Hint, Notifier
from django_jobchains.processors import JobType
from django_jobchains.store import get_store
from tests.shop.models import Effect
from tests.support.jobs import claim, failed_try

#: No processor handles this type.
approval = JobType("completing.approval")
typed = JobType("completing.typed", input=int, output=int)
strict = JobType("completing.strict", continues_with=["completing.typed"])
inner = JobType("completing.inner", entry=False)
TYPES = (approval, typed, strict, inner)
#: No app declares this type.
gone = JobType("completing.gone")

HOUR = 3600


def pending():
    return approval.enqueue()


def scheduled():
    return approval.enqueue(delay=HOUR)


def blocked():
    return approval.enqueue(blockers=[typed.enqueue(1, delay=HOUR)])


def running():
    chain = approval.enqueue()
    assert claim(get_store(), types=[approval.name])
    return chain


def backing_off():
    chain = approval.enqueue()
    [job] = claim(get_store(), types=[approval.name])
    get_store().attempts.reschedule([failed_try(job, delay_seconds=HOUR)])
    return chain


def asked_to_stop():
    chain = running()
    chains.cancel(chain.id)
    return chain


def completed():
    chain = approval.enqueue()
    finish(chain, "before")
    return chain


def failed():
    chain = approval.enqueue()
    [job] = claim(get_store(), types=[approval.name])
    get_store().attempts.fail([failed_try(job)])
    return chain


def cancelled():
    chain = approval.enqueue()
    chains.cancel(chain.id)
    return chain


OPEN = (pending, scheduled, blocked, running, backing_off, asked_to_stop)
ENDED = (completed, failed, cancelled)


def finish(chain, output=None, job_type=None):
    chains.complete(chain.id, output, job_type)


def rows():
    """Return every column of every row that completing may write."""
    models = (Job, FailedAttempt, JobBlocker, Effect)
    return [row for model in models for row in model._default_manager.order_by("pk").values()]


class RecordingNotifier(Notifier):
    sent: list[Hint] = []

    def send(self, hints):
        self.sent.extend(hints)


@contextmanager
def recorded():
    """Record the hints that are sent in the block."""
    RecordingNotifier.sent.clear()
    with override_settings(JOBCHAINS={"NOTIFIER": {"BACKEND": "tests.completing.work.RecordingNotifier"}}):
        yield RecordingNotifier.sent
