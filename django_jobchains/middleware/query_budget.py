"""How many queries a handler may make: the loop that asks once for each row is found before production does."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from logging import getLogger
from typing import Any, Literal

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_jobchains.exceptions import QueryBudgetExceeded, RegistryError
from django_jobchains.middleware.hooks import Middleware
from django_jobchains.own_statements import indifferent, is_own
from django_jobchains.running import RunningJob

logger = getLogger("django_jobchains")

#: They ask for nothing, and which of them there are depends on the database.
_TRANSACTION_CONTROL = ("BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK", "COMMIT", "START TRANSACTION")


class QueryBudget(Middleware):
    """Counts the queries of the handler and its phases on all its connections, also those of its async ORM.

    More than ``most``: ``action="log"`` logs one warning with their number when the handler is through;
    ``action="fail"`` raises ``QueryBudgetExceeded`` in place of the first query beyond it, and fails the attempt though
    the handler swallows that. ``using``: the aliases that count, all of them unless given. What the library itself
    asks, to lock the job or to enqueue another, does not count, nor do statements that begin or end transactions. A
    ``Batch`` has one budget for all its jobs.
    """

    def __init__(
        self, most: int, *, action: Literal["log", "fail"] = "log", using: str | Collection[str] | None = None
    ) -> None:
        if action not in ("log", "fail"):
            raise RegistryError(f"QueryBudget(action={action!r}): 'log' or 'fail'.")
        self.most = _checked_most(most)
        self.action = action
        self.using = {using} if isinstance(using, str) else using and frozenset(using)
        connection_created.connect(_watch_new, dispatch_uid="jobchains_query_budget")

    @contextmanager
    def around_handler(self, job: RunningJob[Any]) -> Iterator[None]:
        _watch_this_thread()
        spent = _Spent(self, job)
        token = _open.set((*_open.get(), spent))
        try:
            yield
            spent.check()
        finally:
            _open.reset(token)
            spent.tell()

    @contextmanager
    def around_prepare(self, job: RunningJob[Any]) -> Iterator[None]:
        _watch_this_thread()  # of an async handler it is another
        yield

    around_complete = around_prepare


def _checked_most(most: object) -> int:
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise RegistryError(f"QueryBudget({most!r}): a number of queries, 0 or more.")
    return most


class _Spent:
    """What one attempt has used of its budget, on whatever threads."""

    def __init__(self, budget: QueryBudget, job: RunningJob[Any]) -> None:
        self.budget = budget
        self.job = job
        self.queries = 0
        self._numbers = count(1)

    def add(self, alias: str) -> None:
        if self.budget.using is None or alias in self.budget.using:
            self.queries = next(self._numbers)
            self.check()

    def check(self) -> None:
        if self.budget.action == "fail" and self.queries > self.budget.most:
            raise QueryBudgetExceeded(self.job.type_name, self.budget.most)

    def tell(self) -> None:
        if self.budget.action == "log" and self.queries > self.budget.most:
            name = f"{self.job.type_name} {getattr(self.job, 'id', '')}".rstrip()  # a batch has no id
            logger.warning("%s made %d queries; its budget is %d.", name, self.queries, self.budget.most)


#: The budgets that the code running here spends, the outermost first. It follows a handler into its threads and tasks.
_open: ContextVar[tuple[_Spent, ...]] = ContextVar("jobchains_query_budgets", default=())


def _count(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    if (budgets := _open.get()) and not is_own() and not str(sql).lstrip().upper().startswith(_TRANSACTION_CONTROL):
        for spent in budgets:
            spent.add(context["connection"].alias)
    return execute(sql, params, many, context)


indifferent.add(_count)


def _watch_this_thread() -> None:
    for connection in connections.all(initialized_only=True):
        _watch(connection)


def _watch_new(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    _watch(connection)


def _watch(connection: BaseDatabaseWrapper) -> None:
    """For good, and outermost: whoever wraps statements for a while removes what comes last."""
    if _count not in connection.execute_wrappers:
        connection.execute_wrappers.insert(0, _count)
