"""For whom a job runs: what was bound where its chain was enqueued is bound again while its handler runs."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django_jobchains.context import decoded, restored
from django_jobchains.exceptions import FailJob, RegistryError
from django_jobchains.middleware.hooks import Middleware
from django_jobchains.running import RunningJob


class ActorContext(Middleware):
    """``context.current()["tenant"]`` in the handler is that of the job, and chains which the handler enqueues have it.

    ``require``: names that each job must have bound, and not as None; a job without them fails, for good, before its
    handler runs. For a ``Batch`` whose jobs differ nothing is bound.
    """

    def __init__(self, *, require: Iterable[str] = ()) -> None:
        self.require = tuple(require)
        if isinstance(require, str) or not all(isinstance(name, str) for name in self.require):
            raise RegistryError(f"ActorContext(require={require!r}): a list of names, such as ['tenant'].")

    @contextmanager
    def around_handler(self, job: RunningJob[Any]) -> Iterator[None]:
        jobs = list(job) if isinstance(job, Sequence) else [job]
        for one in jobs:
            self._check(one)
        stored = {one.stored_context for one in jobs}
        with restored(stored.pop() if len(stored) == 1 else None):
            yield

    def _check(self, job: RunningJob[Any]) -> None:
        values = {} if job.stored_context is None else decoded(job.stored_context)
        if missing := [name for name in self.require if values.get(name) is None]:
            names = ", ".join(missing)
            raise FailJob(f"Its context has no {names}. Enqueue it inside context.bound({missing[0]}=…).")
