"""What the library asks the database on its own account, as told apart from what handlers ask."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
ResultT = TypeVar("ResultT")

_is_own: ContextVar[bool] = ContextVar("jobchains_own_statements", default=False)

#: Django's ``execute_wrappers`` that look at others' statements only: for them the store gives up no prepared ones.
indifferent: set[Callable[..., Any]] = set()


def own(function: Callable[Parameters, ResultT]) -> Callable[Parameters, ResultT]:
    """Whatever the function asks is the library's own."""

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> ResultT:
        token = _is_own.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            _is_own.reset(token)

    return run


def is_own() -> bool:
    """Whether the statement that is being executed is."""
    return _is_own.get()
