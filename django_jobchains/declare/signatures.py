"""The input and output types in the annotations of handlers."""

import inspect
from collections.abc import Callable, Iterable
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from django_jobchains.exceptions import RegistryError
from django_jobchains.handlers.batch import Batch
from django_jobchains.handlers.running_job import Continuation, RunningJob, plain_function
from django_jobchains.middleware.hooks import Middleware
from django_jobchains.records.processor import RecordRun

#: The position of the context among the types of an annotation.
_PLACES_OF_CONTEXT: dict[Any, int] = {RunningJob: 2, Batch: 1, RecordRun: 0}


def first_annotation(function: Callable[..., Any]) -> Any:
    """Return the annotation of the parameter that takes the job, or None."""
    return type_hints(function).get(next(iter(inspect.signature(function).parameters)))


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    function = plain_function(function)
    try:
        return get_type_hints(function)
    except NameError as error:
        raise RegistryError(
            f"The annotations of {function.__qualname__} cannot be read: {error}. Import the name at run time too, or "
            "pass input= and output= to register()."
        ) from error


def input_type(annotation: Any) -> Any:
    arguments = get_args(annotation) if get_origin(annotation) in (RunningJob, Batch) else ()
    return Any if not arguments or isinstance(arguments[0], TypeVar) else arguments[0]


def blocker_types(annotation: Any) -> list[Any] | None:
    """Return the output types of the chains in ``RunningJob[…, tuple[Chain[…], …]]``, or None without such a tuple."""
    arguments = get_args(annotation) if get_origin(annotation) is RunningJob else ()
    chains = get_args(arguments[1]) if len(arguments) > 1 and get_origin(arguments[1]) is tuple else ()
    return None if not chains or Ellipsis in chains else [next(iter(get_args(chain)), Any) for chain in chains]


def check_context(function: Callable[..., Any], middleware: Iterable[Middleware[Any]]) -> None:
    """Raise ``RegistryError`` if a handler's or a hook's annotation needs context that no middleware provides."""
    try:
        needed = [part for annotation in type_hints(function).values() for part in _context_of(annotation)]
    except RegistryError:  # It is raised again where the annotations are needed.
        return
    provided = {part.provides for part in middleware}
    if missing := " and a ".join(part.__qualname__ for part in needed if part not in provided):
        raise RegistryError(
            f"{plain_function(function).__qualname__} needs a {missing}, which no middleware provides before it: add a "
            "subclass of Middleware[…] with this type to Processors(middleware=[…])."
        )


def _context_of(annotation: Any) -> list[type]:
    """Return the classes that an annotation needs from middleware, such as ``RunningJob[…, …, Tenant | Client]``."""
    place = _PLACES_OF_CONTEXT.get(get_origin(annotation))
    given = () if place is None else get_args(annotation)[place : place + 1]
    parts = get_args(given[0]) if given and get_origin(given[0]) in (Union, UnionType) else given
    return [part for part in parts if isinstance(part, type) and part not in (Any, NoneType)]


def output_type(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, UnionType):
        return NoneType if annotation is Continuation else annotation
    rest = tuple(part for part in get_args(annotation) if part is not Continuation)
    return Union[rest]  # noqa: UP007 - the members are values
