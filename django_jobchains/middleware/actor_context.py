"""For whom a job runs: what was bound where its chain was enqueued is bound again while its handler runs."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from django_jobchains.context import common, decoded, restored
from django_jobchains.exceptions import FailJob, RegistryError
from django_jobchains.middleware.hooks import Middleware
from django_jobchains.running import RunningJob


class ActorContext(Middleware):
    """``context.current()["tenant"]`` in the handler is that of the job, and chains which the handler enqueues have it.

    ``require``: names that each job must have bound, and not as None; a job without them fails, for good, and its
    handler does not see it. For a ``Batch`` that is bound which all of its jobs have in common.
    """

    def __init__(self, *, require: Iterable[str] = ()) -> None:
        self.require = tuple(require)
        if isinstance(require, str) or not all(isinstance(name, str) for name in self.require):
            raise RegistryError(f"ActorContext(require={require!r}): a list of names, such as ['tenant'].")

    def around_handler(self, job: RunningJob[Any]) -> AbstractContextManager[None]:
        if isinstance(job, Sequence):
            return restored(self._of_batch(job))
        if problem := self._problem(job):
            raise FailJob(problem)
        return restored(job.stored_context)

    def _of_batch(self, batch: Sequence[Any]) -> str | None:
        complete = []
        for job in batch:
            if problem := self._problem(job):
                job.fail(problem)
            else:
                complete.append(job.stored_context)
        return common(complete)

    def _problem(self, job: RunningJob[Any]) -> str:
        values = {} if job.stored_context is None else decoded(job.stored_context)
        missing = [name for name in self.require if values.get(name) is None]
        if not missing:
            return ""
        return f"Its context has no {', '.join(missing)}. Enqueue it inside context.bound({missing[0]}=…)."
