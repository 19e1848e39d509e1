"""Job types that are completed by hand, chains with every status, and recorders of rows and hints."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from django.test import override_settings

from django_jobchains import chains
from django_jobchains.models import Chain, FailedAttempt, Job, JobBlocker
from django_jobchains.notifications import Hint, Notifier
from django_jobchains.processors import JobType
from django_jobchains.store import get_store
from tests.shop.models import Effect
from tests.support.jobs import claim, failed_try

#: No processor handles this type.
approval: JobType[Any, Any] = JobType("completing.approval")
typed: JobType[int, int] = JobType("completing.typed", input=int, output=int)
strict: JobType[Any, Any] = JobType("completing.strict", continues_with=["completing.typed"])
inner: JobType[Any, Any] = JobType("completing.inner", entry=False)
choosy: JobType[Any, Any] = JobType("completing.choosy", blockers=["completing.typed"])
TYPES = (approval, typed, strict, inner, choosy)
#: No app declares this type.
gone: JobType[Any, Any] = JobType("completing.gone")

HOUR = 3600


def pending() -> Chain:
    return approval.enqueue()


def scheduled() -> Chain:
    return approval.enqueue(delay=HOUR)


def blocked() -> Chain:
    return approval.enqueue(blockers=[typed.enqueue(1, delay=HOUR)])


def running() -> Chain:
    chain = approval.enqueue()
    assert claim(get_store(), types=[approval.name])
    return chain


def backing_off() -> Chain:
    chain = approval.enqueue()
    [job] = claim(get_store(), types=[approval.name])
    get_store().attempts.reschedule([failed_try(job, delay_seconds=HOUR)])
    return chain


def asked_to_stop() -> Chain:
    chain = running()
    chains.cancel(chain.id)
    return chain


def completed() -> Chain:
    chain = approval.enqueue()
    finish(chain, "before")
    return chain


def failed() -> Chain:
    chain = approval.enqueue()
    [job] = claim(get_store(), types=[approval.name])
    get_store().attempts.fail([failed_try(job)])
    return chain


def cancelled() -> Chain:
    chain = approval.enqueue()
    chains.cancel(chain.id)
    return chain


OPEN: tuple[Callable[[], Chain], ...] = (pending, scheduled, blocked, running, backing_off, asked_to_stop)
ENDED: tuple[Callable[[], Chain], ...] = (completed, failed, cancelled)


def finish(chain: Chain, output: Any = None, job_type: Any = None) -> None:
    chains.complete(chain.id, output, job_type)


def rows() -> list[dict[str, Any]]:
    """Return every column of every row that completing may write."""
    models = (Job, FailedAttempt, JobBlocker, Effect)
    return [row for model in models for row in model._default_manager.order_by("pk").values()]


class RecordingNotifier(Notifier):
    sent: list[Hint] = []

    def _fresh(self, hints: Collection[Hint]) -> list[Hint]:
        return list(hints)

    def send(self, hints: Collection[Hint]) -> None:
        self.sent.extend(hints)


@contextmanager
def recorded() -> Iterator[list[Hint]]:
    """Record the hints that are sent in the block."""
    RecordingNotifier.sent.clear()
    with override_settings(JOBCHAINS={"NOTIFIER": {"BACKEND": "tests.completing.work.RecordingNotifier"}}):
        yield RecordingNotifier.sent
