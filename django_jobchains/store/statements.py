"""The base of the groups of the store's methods, which own the SQL of their tables, and statements that are built once.

A statement is sent as one line: extra spaces and line breaks in its text do not matter.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVarTuple

from django_jobchains.store.database import Database

Arguments = TypeVarTuple("Arguments")


class Part:
    """A group of the store's methods. Each is one transaction with a constant number of statements for any batch size.

    It joins the caller's transaction if one is open. Rows travel as one JSON parameter (``Database.rows``).
    """

    def __init__(self, db: Database) -> None:
        self.db = db
        self.tables = db.tables


class statement:  # noqa: N801 - a decorator, as ``property`` is
    """A property with the text of a statement. It is built once, and rebuilt only after a test has moved the clock."""

    def __init__(self, build: Callable[[Any], str]) -> None:
        self._build = build

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, part: Any, owner: type | None = None) -> str:
        sql = part.__dict__[self._name] = one_line(self._build(part))
        part.db.built.append((part.__dict__, self._name))
        return sql


def statements(build: Callable[[Any, *Arguments], str]) -> Callable[[Any, *Arguments], str]:
    """Like ``statement``, for a method: build the text once for each combination of its few possible arguments."""

    @wraps(build)
    def text(part: Any, *args: *Arguments) -> str:
        texts: dict[Any, str] | None = part.__dict__.get(name)
        if texts is None:
            texts = part.__dict__[name] = {}
            part.db.built.append((part.__dict__, name))
        sql = texts.get(args)
        if sql is None:
            sql = texts[args] = one_line(build(part, *args))
        return sql

    name = f"{build.__name__} texts"
    return text


def one_line(sql: str) -> str:
    return " ".join(sql.split())
