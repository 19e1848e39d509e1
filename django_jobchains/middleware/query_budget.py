"""A limit for the queries of a handler, to find a query per row before production does."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from logging import getLogger
from typing import Any, Literal

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_jobchains.db.connections import ignoring_own_statements, is_own_statement
from django_jobchains.exceptions import QueryBudgetExceeded, RegistryError
from django_jobchains.handlers.running_job import RunningJob
from django_jobchains.middleware.hooks import Middleware

logger = getLogger("django_jobchains")

#: These statements are not counted, because their number depends on the database.
_TRANSACTION_CONTROL = ("BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK", "COMMIT", "START TRANSACTION")


class QueryBudget(Middleware):
    """Limits the number of queries of a handler, on all connections, including queries of the async ORM.

    If there are more than ``max_queries``, ``action="log"`` logs one warning with the number of queries after the
    handler. ``action="fail"`` raises ``QueryBudgetExceeded`` instead of the first query beyond the limit, and fails the
    attempt even if the handler catches the error. ``using``: the database aliases that count; by default, all of them.
    Queries of this package and statements that begin or end transactions do not count. A ``Batch`` has one budget for
    all its jobs.
    """

    def __init__(
        self, max_queries: int, *, action: Literal["log", "fail"] = "log", using: str | Collection[str] | None = None
    ) -> None:
        if action not in ("log", "fail"):
            raise RegistryError(f"QueryBudget(action={action!r}): 'log' or 'fail'.")
        if type(max_queries) is not int or max_queries < 0:  # a bool is an int too
            raise RegistryError(f"QueryBudget({max_queries!r}): pass a number of queries, 0 or more.")
        self.max_queries = max_queries
        self.action = action
        self.using = {using} if isinstance(using, str) else using and frozenset(using)
        _watch_this_thread()
        connection_created.connect(_watch, dispatch_uid="jobchains_query_budget")

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
            spent.log()


class _Spent:
    """The number of queries of one attempt, on all its threads."""

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
        if self.budget.action == "fail" and self.queries > self.budget.max_queries:
            raise QueryBudgetExceeded(self.job.type_name, self.budget.max_queries)

    def log(self) -> None:
        if self.budget.action == "log" and self.queries > self.budget.max_queries:
            name = f"{self.job.type_name} {getattr(self.job, 'id', '')}".rstrip()  # a batch has no id
            logger.warning("%s made %d queries; its budget is %d.", name, self.queries, self.budget.max_queries)


#: The budgets of the running code, the outermost first. They follow a handler into its threads and tasks.
_open: ContextVar[tuple[_Spent, ...]] = ContextVar("jobchains_query_budgets", default=())


def _count(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    if (
        (budgets := _open.get())
        and not is_own_statement()
        and not str(sql).lstrip().upper().startswith(_TRANSACTION_CONTROL)
    ):
        for spent in budgets:
            spent.add(context["connection"].alias)
    return execute(sql, params, many, context)


ignoring_own_statements.add(_count)


def _watch_this_thread() -> None:
    for connection in connections.all(initialized_only=True):
        _watch(connection)


def _watch(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """Count the queries of a connection from now on. Outermost, because ``execute_wrapper`` removes the last one."""
    if _count not in connection.execute_wrappers:
        connection.execute_wrappers.insert(0, _count)
