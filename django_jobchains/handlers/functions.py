"""The functions that are registered as handlers: partials, methods and callable objects too."""

import inspect
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction

from django_jobchains.exceptions import RegistryError


def plain_function(function: Any) -> Any:
    """Return the function behind a partial or a callable object, which has the annotations."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function).__call__


def is_async_function(function: Any) -> bool:
    """Return whether a handler is an ``async def`` function. Raise ``RegistryError`` if it is an async generator."""
    plain = plain_function(function)
    if inspect.isasyncgenfunction(plain):
        raise RegistryError(f"{plain.__qualname__} has a 'yield': an async handler returns its result.")
    return iscoroutinefunction(function) or iscoroutinefunction(plain)
