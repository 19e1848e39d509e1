"""Calls that use the database and have a twin for async code, which has the prefix ``a``."""

from collections.abc import Callable
from typing import Any, TypeVar

from django.utils.asyncio import async_unsafe

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def has_async_twin(owner: str, twin: str = "") -> Callable[[FunctionT], FunctionT]:
    """Refuse calls on the thread of a running event loop, with an error that names the twin.

    ``owner``: the name of the module or object that callers use. ``twin``: how to call the twin, if it has another name
    than the function.
    """

    def decorate(function: FunctionT) -> FunctionT:
        name = function.__name__
        remedy = twin or f"await {owner}.a{name}(…)"
        return async_unsafe(f"{owner}.{name}() would block the event loop: use '{remedy}'.")(function)

    return decorate
