"""The base of the pools of child processes: their options, the numbers of their calls, and their end."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import ClassVar, Self

from django_jobchains.isolation import Isolation, Level, check_level
from django_jobchains.pools.launcher import Launcher
from django_jobchains.pools.open_pools import add_pool


class ProcessPool(ABC):
    level: ClassVar[Level]
    isolation: Isolation
    _launcher: Launcher

    @classmethod
    def of(cls, isolation: Isolation, imports: Sequence[str] = ()) -> Self:
        """Return a pool with the limits of an ``Isolation``. ``imports``: modules that children import first."""
        pool = cls.__new__(cls)
        pool._open(isolation, imports)
        return pool

    def _open(self, isolation: Isolation, imports: Sequence[str] = ()) -> None:
        check_level(isolation, self.level)
        self.isolation = isolation
        self._imports = imports
        self._ids = itertools.count()
        self._is_closed = False
        self.start_anew()
        add_pool(self)

    @abstractmethod
    def start_anew(self) -> None:
        """Begin without workers, in a new pool or in a forked process."""

    def next_request_id(self) -> int:
        """Return the number of the next call, from 0."""
        return next(self._ids)

    @property
    def is_weakened(self) -> bool:
        """Whether calls run on threads of this process, because child processes do not start."""
        return bool(self._launcher.problem)

    @abstractmethod
    def terminate(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.terminate()
