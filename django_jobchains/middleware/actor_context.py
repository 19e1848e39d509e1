"""Restoring the context of a chain, such as its tenant, while its handler runs."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from django_jobchains.context import decode_context, restore_context, shared_context
from django_jobchains.exceptions import FailJob, RegistryError
from django_jobchains.handlers.running_job import RunningJob
from django_jobchains.middleware.hooks import Middleware


class ActorContext(Middleware):
    """Bind the values of the job's context again, for ``context.current()`` and the chains that the handler enqueues.

    ``require``: names that the context of each job must have, with values other than None. A job without them fails
    without a retry, and its handler is not called. For a ``Batch``, the values that all jobs have in common are bound.
    Records have no context, so nothing is bound for them. With ``require``, they fail.
    """

    def __init__(self, *, require: Iterable[str] = ()) -> None:
        self.require = tuple(require)
        if isinstance(require, str) or not all(isinstance(name, str) for name in self.require):
            raise RegistryError(f"ActorContext(require={require!r}): a list of names, such as ['tenant'].")

    def around_handler(self, job: RunningJob[Any]) -> AbstractContextManager[None]:
        if isinstance(job, Sequence):
            return restore_context(self._shared_context(job))
        if problem := self._problem(job):
            raise FailJob(problem)
        return restore_context(job.stored_context)

    def _shared_context(self, batch: Sequence[Any]) -> str | None:
        complete = []
        for job in batch:
            if problem := self._problem(job):
                job.fail(problem)
            else:
                complete.append(job.stored_context)
        return shared_context(complete)

    def _problem(self, job: RunningJob[Any]) -> str:
        values = {} if job.stored_context is None else decode_context(job.stored_context)
        missing = [name for name in self.require if values.get(name) is None]
        if not missing:
            return ""
        if hasattr(job, "record"):
            return "Records store no context: register them in a slice without ActorContext(require=…)."
        return f"Its context has no {', '.join(missing)}. Enqueue it inside context.bound({missing[0]}=…)."
