"""The types of inputs and outputs: annotations, which pydantic converts, and objects that convert values themselves.

``Codec`` converts the values of one declared type to JSON text and back.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import partial
from types import GenericAlias, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Never, Protocol, Union, cast, get_args, get_origin

from django.apps import apps
from django.db import DatabaseError, InterfaceError

from django_jobchains.exceptions import InvalidPayload, RegistryError
from django_jobchains.payloads.strict_json import decode, encode, path_step
from django_jobchains.text.humanize import sentence
from django_jobchains.text.validation_errors import describe_without_values, listed, number_of_problems, problems_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: What a job or a chain returns. ``Chain`` without a type is ``Chain[Any]``.
    OutputT_co = TypeVar("OutputT_co", default=Any, covariant=True)
else:  # before Python 3.13, a TypeVar has no default
    from typing import TypeVar

    OutputT_co = TypeVar("OutputT_co", covariant=True)

InputT_contra = TypeVar("InputT_contra", contravariant=True)
ValueT = TypeVar("ValueT")

_JSON_TYPES = frozenset({str, int, float, bool, None, NoneType, dict, list, object, Any})
_JSON = (dict, list, str, int, float, NoneType)
#: Errors of the process, the network or the database, which validators may raise for valid values.
NOT_ABOUT_THE_VALUE = (MemoryError, OSError, DatabaseError, InterfaceError)


class PayloadType(Protocol[ValueT]):
    """Converts the inputs or outputs of a job type to JSON and back. Pass an instance as ``input=`` or ``output=``.

    It may also have a method ``schema()``, which returns the JSON Schema of the values that ``load`` accepts. The
    contract tests are ``django_jobchains.testing.contracts.PayloadTypeContract``.
    """

    def load(self, value: Any, /) -> ValueT:
        """Return the value that a JSON value stands for. Raise any exception if it does not fit the type."""

    def dump(self, value: ValueT, /) -> Any:
        """Return the JSON value that ``load`` converts back. Raise any exception if the value has another type."""


class PydanticType:
    """Converts values of an annotation with pydantic, which also validates them.

    Fields are stored by their names. JSON with their aliases can be loaded too.
    """

    def __init__(self, annotation: Any) -> None:
        from pydantic import TypeAdapter
        from pydantic_core import SchemaValidator

        self._annotation = annotation
        self._is_json = _is_json_type(annotation) and not _may_convert(annotation)
        self._adapter = adapter = TypeAdapter(cast("Any", annotation))
        # The adapter's method also checks options that are not used here. It is needed for types that are built later.
        is_built = isinstance(adapter.validator, SchemaValidator)
        self.load = partial(adapter.validator.validate_python if is_built else adapter.validate_python, by_name=True)
        self._load_strictly = partial(self.load, strict=True)
        self._dump = partial(adapter.dump_python, mode="json", by_alias=False)
        self.dump = partial(self._dump, warnings="error")

    def is_stored_unchanged(self, value: Any) -> bool:
        """Return whether the annotation is a JSON type and the value has it, so that no conversion is needed.

        The value may still contain something that JSON does not allow. A conversion takes several times as long as this
        check.
        """
        if not self._is_json:
            return False
        try:
            self._load_strictly(value)
        except Exception:  # of any part of the value
            return False
        return True

    def schema(self) -> dict[str, Any] | None:
        from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

        try:
            schema: dict[str, Any] = self._adapter.json_schema(by_alias=False)
        except (PydanticInvalidForJsonSchema, PydanticUserError):  # a type with a validator in Python
            return None
        return schema

    def problem_with(self, value: Any, error: Exception) -> Exception | str:
        """Return what to pass instead of a value of another type, or the error that locates the wrong part."""
        if not _is_instance(value, self._annotation):
            given = "None" if value is None else type(value).__name__
            type_ = self._annotation
            fields = getattr(type_, "__dataclass_fields__", None) or getattr(type_, "model_fields", None) or ()
            call = f"({', '.join(f'{field}=…' for field in fields)})" if fields else ""
            return f"pass {name_of_type(type_)}{call}, not {given}."
        try:
            self.load(self._dump(value, warnings=False))
            text = self._adapter.dump_json(value, by_alias=False, warnings=False)
            self._adapter.validate_json(text, strict=True, by_name=True)
        except Exception as found:
            return found if number_of_problems(found) else error
        return error


class Codec:
    """Converts values of one declared type to JSON text and back.

    Annotations other than JSON types need pydantic, which also validates the values. Without pydantic, such an
    annotation is an error when the job type is declared.
    """

    def __init__(self, annotation: Any = Any) -> None:
        if isinstance(annotation, str):
            raise RegistryError(f"{annotation!r:.50} as input or output is a string: pass the type itself.")
        #: Without the metadata of ``Annotated``, which only the conversion needs.
        self.annotation = _without_metadata(annotation)
        self._type = None if annotation in (Any, object) else payload_type(annotation)

    @property
    def name(self) -> str:
        return name_of_type(self.annotation)

    def encode(self, value: Any, error: type[InvalidPayload]) -> str:
        """Return the JSON text of a value of the type, or of JSON that fits the type, or raise ``error``."""
        if self._type is None or (isinstance(self._type, PydanticType) and self._type.is_stored_unchanged(value)):
            return encode(value, error)
        try:
            return self._dump(self._type, value, error)
        except Exception as problem:  # errors of pydantic, of custom validators and of other types' methods
            text = self._encode_json(self._type, value, problem, error)
        # Raised after the except block: otherwise its error, which may quote the value, would be the context.
        if isinstance(text, InvalidPayload):
            raise text
        return text

    def _encode_json(
        self, type_: PayloadType[Any], value: Any, problem: Exception, error: type[InvalidPayload]
    ) -> str | InvalidPayload:
        """Return the text of JSON that ``load`` accepts, or else the error to raise.

        ``problem``: why it is not already a value of the type.
        """
        if isinstance(value, _JSON):
            try:
                encode(value, error)
                return self._dump(type_, type_.load(value), error)
            except InvalidPayload:
                pass
            except Exception as found:
                if isinstance(value, dict | list):
                    return self._error_of(found, value, error)
        return self._error(value, problem, error)

    def _dump(self, type_: PayloadType[Any], value: Any, error: type[InvalidPayload]) -> str:
        plain = type_.dump(value)
        text = encode(plain, error)
        back = type_.load(plain)
        # If two equal texts are read back as different values, a difference proves nothing.
        if (path := _changed_part(value, back)) and not _changed_part(back, type_.load(plain)):
            remedy = "annotate it with its type, or with validators and serializers that restore it"
            raise error(f"At {path}: it would be read back as another value: {remedy}.", path)
        return text

    def decode(self, text: str, error: type[InvalidPayload]) -> Any:
        return self.validate(decode(text, error), error)

    def validate(self, value: Any, error: type[InvalidPayload]) -> Any:
        """Return the value that a JSON value stands for. Raise ``error`` if it does not fit the type."""
        if self._type is None:
            return value
        try:
            return self._type.load(value)
        except NOT_ABOUT_THE_VALUE:
            raise
        except Exception as problem:
            refused = self._error_of(problem, value, error)
        raise refused  # without a context, see encode()

    def json_schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the values that ``decode`` accepts, or None if there is none."""
        schema = getattr(self._type, "schema", None)
        return schema() if callable(schema) else None

    def _error(self, value: Any, problem: Exception, error: type[InvalidPayload]) -> InvalidPayload:
        """Return the error for a value that could not be dumped."""
        if isinstance(problem, InvalidPayload):
            return problem
        if not isinstance(self._type, PydanticType):
            return self._error_of(problem, value, error)
        found = self._type.problem_with(value, problem)
        return error(f"{self._not_one}: {found}") if isinstance(found, str) else self._error_of(found, value, error)

    def _error_of(self, problem: Exception, value: Any, error: type[InvalidPayload]) -> InvalidPayload:
        if self.annotation in (None, NoneType):
            given = type(value).__name__
            return error(f"Not None: it is declared without a value, so pass None, not {given}.")
        problems = problems_of(problem)
        text = listed(problems) or describe_without_values(problem, value)
        return error(sentence(f"{self._not_one}: {text}"), problems=problems)

    @property
    def _not_one(self) -> str:
        """Return "Not an int", for an error about a value of another type."""
        return f"Not {'an' if self.name[:1].lower() in tuple('aeio') else 'a'} {self.name}"


def _changed_part(value: Any, back: Any, path: str = "$") -> str:
    """Return the path of the first part that was read back as another value, or "" if there is none.

    Python calls a time that a change of clocks repeats or omits unequal to the same time with another time zone object,
    and every two instances of a dataclass with ``eq=False``.
    """
    if value == back:
        return ""
    if isinstance(value, datetime) and isinstance(back, datetime):
        return "" if value.isoformat() == back.isoformat() else path
    parts, others = _parts(value), _parts(back)
    if type(value) is not type(back) or parts.keys() != others.keys():
        return path
    different = [name for name in parts if parts[name] != others[name]]
    is_compared_by_identity = is_dataclass(value) and type(value).__eq__ is object.__eq__
    if not different and not is_compared_by_identity:
        return path
    changes = (_changed_part(parts[name], others[name], path + path_step(name)) for name in different)
    return next(filter(None, changes), "")


def _parts(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return getattr(value, "__dict__", {})


class HasTypes(Generic[InputT_contra, OutputT_co]):
    """A job type that takes this input, and whose jobs return this output."""

    if not TYPE_CHECKING:
        #: Accepts the type of the input alone: only type checkers know the default of the output.
        __class_getitem__ = classmethod(GenericAlias)

    name: str
    output_codec: Codec


#: The input for a job type. No function is like the second one: because of it, mypy infers the type of the input from
#: the job type first, and reads a literal as a value of that type: see docs/decisions/0125-types-of-inputs.md.
Given = Union[ValueT, Callable[[ValueT], Never]]  # noqa: UP007 - mypy refuses a type variable before |


def name_of(job_type: str | HasTypes[Any, Any]) -> str:
    """Return the name of a job type, or the name itself. Raise ``TypeError`` for anything else.

    A task of Django's framework whose backend is ours stands for its ``job_type``.
    """
    job_type = getattr(job_type, "job_type", job_type)
    given: object = job_type.name if isinstance(job_type, HasTypes) else job_type
    if isinstance(given, str):
        return given
    raise TypeError(f"A job type is given as a JobType or by its name, not as {type(given).__name__}: {given!r:.100}.")


def output_codec(type_name: str, expected: HasTypes[Any, Any] | None = None) -> Codec:
    """Return the codec for a type's outputs, from ``expected`` if it is this JobType, or else from the registered type.

    Outputs of types that no app declares are JSON values.
    """
    if expected is None or expected.name != type_name:
        config: Any = apps.get_app_config("django_jobchains")
        expected = config.registry.find(type_name)
    return Codec() if expected is None else expected.output_codec


def payload_type(annotation: Any) -> PayloadType[Any] | None:
    """Return the converter for values of a declared type, or None if they are JSON and pydantic is not installed.

    Raises ``RegistryError`` for a type that cannot be converted.
    """
    if is_payload_type(annotation):
        return cast("PayloadType[Any]", annotation)
    try:
        return PydanticType(annotation)
    except ImportError:
        if _is_json_type(annotation):
            return None
        raise RegistryError(
            f"{name_of_type(annotation)} as input or output needs pydantic: "
            "install django_jobchains[typed], or use JSON or an object with the methods load and dump."
        ) from None
    except Exception as problem:
        raise RegistryError(_type_problem(annotation, problem)) from problem


def _type_problem(annotation: Any, error: Exception) -> str:
    """Return what is wrong with the type of an input or output, for which pydantic has no schema."""
    name = name_of_type(annotation)
    if type(error).__name__ == "PydanticSchemaGenerationError":
        # The type may be a part of the annotation, as in list[Order].
        part = re.search(r"schema for (?:<class '[\w.]*?(\w+)'>|(\S+?)\.?\s)", str(error))
        what = "" if part is None or name in part.groups() else f" with {part[1] or part[2]} in it"
        return f"{name}{what} cannot be stored as JSON: pass its primary key, or a dataclass."
    return sentence(f"{name} cannot be an input or output: {error}")


def is_payload_type(given: Any) -> bool:
    """Return whether this converts values itself. A class is an annotation, even if its instances convert values."""
    return not isinstance(given, type) and all(callable(getattr(given, name, None)) for name in ("load", "dump"))


def name_of_type(annotation: Any) -> str:
    described = type(annotation) if is_payload_type(annotation) else _without_metadata(annotation)
    return getattr(described, "__qualname__", str(described))


def _without_metadata(annotation: Any) -> Any:
    return annotation.__origin__ if get_origin(annotation) is Annotated else annotation


def _is_json_type(annotation: Any) -> bool:
    annotation = _without_metadata(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is None:
        return annotation in _JSON_TYPES
    # Keys are strings in JSON.
    if origin is dict and arguments and _without_metadata(arguments[0]) not in (str, object, Any):
        return False
    return origin in (dict, list, Union, UnionType) and all(map(_is_json_type, arguments))


def _may_convert(annotation: Any) -> bool:
    """Return whether pydantic may convert a value that strict mode accepts: an int as a float, or by its metadata."""
    return annotation is float or get_origin(annotation) is Annotated or any(map(_may_convert, get_args(annotation)))


def _is_instance(value: Any, annotation: Any) -> bool:
    try:
        return isinstance(value, annotation)
    except TypeError:  # isinstance() does not accept TypedDict or list[int]
        return True
