"""Columns with payloads, which ``JOBCHAINS["PAYLOAD_CODEC"]`` may have encoded. Instances have the decoded values.

Reading a row never raises an error: a value that cannot be decoded is ``Unreadable`` in a JSON column, and the reason
in a text column.
"""

import json
from typing import TYPE_CHECKING, Any, NoReturn

from django.core.exceptions import FieldError
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, F, Func, IntegerField, Value, When
from django.db.models.functions import Cast, Coalesce, Left
from django.db.models.lookups import Exact, LessThanOrEqual
from django.db.models.signals import pre_save
from django.dispatch import receiver

from django_jobchains.payloads.codecs import (
    Unreadable,
    UnreadableText,
    decode_text,
    decoded_value,
    encode_json,
    encode_text,
    get_codec,
)
from django_jobchains.text.errors import ENCODED, unmarked

if TYPE_CHECKING:
    _Field = models.Field[Any, Any]
else:
    _Field = object


class _EncodedField(_Field):
    """Refuses what the database cannot do with encoded values: conditions, and results of expressions as new values."""

    def deconstruct(self) -> tuple[str, str, list[Any], dict[str, Any]]:
        """Migrations know the column by its type only."""
        name, _, arguments, options = super().deconstruct()
        base = next(base for base in type(self).__mro__ if base.__module__.startswith("django.db.models"))
        return name, f"django.db.models.{base.__name__}", list(arguments), options

    def get_lookup(self, name: str) -> Any:
        if name != "isnull":
            self._refuse()
        return super().get_lookup(name)

    def get_transform(self, name: str) -> Any:
        self._refuse()
        return super().get_transform(name)

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        # A column with encoded values can be copied, and bulk_update() encodes the values in its expressions.
        if hasattr(value, "as_sql") and get_codec():
            functions = {type(part) for part in value.flatten() if isinstance(part, Func)}
            if functions - {Cast, Coalesce} or not isinstance(value.output_field, _EncodedField):
                raise FieldError(
                    f"The database cannot compute {self.name!r}, because JOBCHAINS['PAYLOAD_CODEC'] encodes it. Set it "
                    "to a value instead of an expression. bulk_update() sets different values in one statement."
                )
        return super().get_db_prep_save(value, connection)

    def _refuse(self) -> None:
        if get_codec():
            raise FieldError(
                f"Rows cannot be found by {self.name!r}, because JOBCHAINS['PAYLOAD_CODEC'] encodes it. Use another "
                "column, such as the deduplication key."
            )


class PayloadField(_EncodedField, models.JSONField):
    """A JSON field that is stored with the payload codec."""

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        if isinstance(value, str) and not value.startswith(ENCODED):
            try:
                value = super().from_db_value(value, expression, connection)
            except (ValueError, RecursionError) as error:  # a number with too many digits, or too deep a nesting
                return Unreadable(error, value)
        return decoded_value(value)  # of PostgreSQL's type json, psycopg has read the value

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        if isinstance(value, Unreadable):
            return value.stored
        if isinstance(value, str):
            value = unmarked(value)
        if value is not None and not hasattr(value, "as_sql") and get_codec():
            value = json.loads(encode_json(json.dumps(value)))
        return super().get_db_prep_save(value, connection)


class PayloadTextField(_EncodedField, models.TextField):  # type: ignore[type-arg]
    """A text field that is stored with the payload codec, such as an error message."""

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        return value and decode_text(value)

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        if isinstance(value, UnreadableText):
            value = value.stored
        elif value and not hasattr(value, "as_sql"):
            value = encode_text(unmarked(value))
        return super().get_db_prep_save(value, connection)


class ReadOnlyInstance:
    """A job or a chain. Writing it as an instance would damage the row.

    In an instance, None is both a JSON null, which is an output, and NULL, which means that the chain continues. An
    instance that was read before a claim would also reset the lease.
    """

    _meta: Any

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            f"A {self._meta.model_name} cannot be saved directly. Use the functions of django_jobchains.chains, or "
            "Job.objects.filter(…).update(…) if there is none for the change."
        )

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self._meta.model_name
        raise TypeError(
            f"A {name} cannot be deleted directly. Use django_jobchains.chains.delete({name}), which deletes the whole "
            "chain."
        )

    save.alters_data = delete.alters_data = True  # type: ignore[attr-defined]


@receiver(pre_save, sender="django_jobchains.Job")
def refuse_fixture(raw: bool, **kwargs: Any) -> None:
    """Refuse jobs that Django loads from a fixture or for ``serialized_rollback``: it does not call ``save``."""
    if raw:
        raise TypeError(
            "Jobs cannot be loaded from a fixture. Run dumpdata with '-e django_jobchains' to create one without them. "
            "If a test with serialized_rollback loads jobs that a migration has enqueued, set TEST_NON_SERIALIZED_APPS "
            "= ['django_jobchains'] in the settings. To back up or copy jobs, use the tools of the database, such as "
            "pg_dump: see docs/operate/backups.md."
        )


def text_start(name: str, length: int) -> Case:
    """Select the first characters of a text column. An encoded text is read whole: its beginning cannot be decoded."""
    is_encoded: Any = Exact(Left(name, len(ENCODED)), Value(ENCODED))
    return Case(When(is_encoded, then=F(name)), default=Left(name, length), output_field=PayloadTextField())


class StoredSize(Func):
    """The size of a value as it is stored. PostgreSQL knows it without reading a large value, which it compresses."""

    function = "LENGTH"
    arity = 1
    output_field = IntegerField()

    def as_postgresql(self, compiler: Any, connection: BaseDatabaseWrapper, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="pg_column_size", **context)


def short_input(limit: int) -> Case:
    """Select the stored text of the input, or NULL for an input that takes more than this number of bytes."""
    is_short: Any = LessThanOrEqual(StoredSize(F("input")), Value(limit))
    return Case(When(is_short, then=Cast("input", models.TextField())), output_field=models.TextField())
