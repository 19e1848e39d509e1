"""Reads the JSON Schemas of inputs and outputs: the members of an object, and an example of a value.

A schema may come from any library. Parts that this module does not know accept any JSON.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]

#: Marks a member that has no default.
NO_DEFAULT: Any = object()
#: The maximum depth of an example, because a type may contain itself.
MAX_LEVELS = 8
#: How many references are followed in a row, because they may form a cycle.
MAX_REFERENCES = 50
_NULL = "null"
#: A schema without any of these accepts every value.
_RESTRICTING = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"}


@dataclass(frozen=True)
class Member:
    """A member of an object. ``schema`` describes its values other than null."""

    name: str
    title: str
    description: str
    schema: Schema
    is_required: bool
    accepts_null: bool
    default: Any = NO_DEFAULT
    #: A value that shows the form of the member.
    example: Any = None


def members_of(schema: Schema | None) -> list[Member]:
    """Return the members of the objects that a schema describes; empty if it does not describe one kind of object."""
    schema = schema or {}
    definitions = _mapping(schema.get("$defs"))
    whole = _resolved(schema, definitions)
    required = _sequence(whole.get("required"))
    return [
        _member(name, _mapping(part), definitions, is_required=name in required)
        for name, part in _mapping(whole.get("properties")).items()
    ]


def example_of(schema: Schema | None) -> Any:
    """Return a value with all members of the schema, as a template for entering one."""
    schema = schema or {}
    return _example(schema, _mapping(schema.get("$defs")), MAX_LEVELS)


def _member(name: str, part: Schema, definitions: Schema, *, is_required: bool) -> Member:
    options = list(_options(part, definitions))
    values = [option for option in options if option.get("type") != _NULL]
    return Member(
        name=name,
        title=str(part.get("title", "")),
        description=str(part.get("description", "")),
        schema=values[0] if len(values) == 1 else {"anyOf": values},
        is_required=is_required,
        accepts_null=len(values) < len(options) or not any(_RESTRICTING & option.keys() for option in options),
        default=part.get("default", NO_DEFAULT),
        example=_example(part, definitions, MAX_LEVELS),
    )


def _options(part: Schema, definitions: Schema) -> Iterator[Schema]:
    """Yield the alternatives of a schema: a value meets one of them."""
    part = _resolved(part, definitions)
    several = _sequence(part.get("anyOf")) or _sequence(part.get("oneOf"))
    if several:
        for option in several:
            yield _resolved(_mapping(option), definitions)
    elif isinstance(kinds := part.get("type"), list):
        yield from ({**part, "type": kind} for kind in kinds)
    else:
        yield part


def _resolved(part: Schema, definitions: Schema) -> Schema:
    """Follow references, including the form ``{"allOf": [{"$ref": …}], "default": …}``."""
    for _count in range(MAX_REFERENCES):
        all_of = _sequence(part.get("allOf"))
        if "$ref" in part:
            name = str(part["$ref"]).removeprefix("#/$defs/")
            target = _mapping(definitions.get(name))
        elif len(all_of) == 1:
            target = _mapping(all_of[0])
        else:
            return part
        part = {**target, **{key: value for key, value in part.items() if key not in ("$ref", "allOf")}}
    return {}


def _example(part: Schema, definitions: Schema, levels: int) -> Any:
    if "default" in part:
        return part["default"]
    options = list(_options(part, definitions))
    part = options[0]
    if any(option.get("type") == _NULL for option in options) or levels == 0:
        return None
    if "const" in part:
        return part["const"]
    if values := _sequence(part.get("enum")):
        return values[0]
    match part.get("type"):
        case "object":
            return _example_object(part, definitions, levels - 1)
        case "array":
            return [_example(_mapping(item), definitions, levels - 1) for item in _sequence(part.get("prefixItems"))]
        case kind:
            return {"string": "", "integer": 0, "number": 0, "boolean": False}.get(str(kind))


def _example_object(part: Schema, definitions: Schema, levels: int) -> dict[str, Any]:
    """Return an example of an object, without members that are neither required nor have a default."""
    required = _sequence(part.get("required"))
    return {
        name: _example(_mapping(member), definitions, levels)
        for name, member in _mapping(part.get("properties")).items()
        if name in required or "default" in _mapping(member)
    }


def _mapping(value: Any) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
