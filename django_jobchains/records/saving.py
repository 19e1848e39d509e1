"""``record.save()`` of a record that is handled: it leaves out the columns of the worker, see docs/decisions/0063."""

from collections.abc import Collection, Mapping
from functools import wraps
from typing import Any, NamedTuple

#: The values of a new record in columns for which the model has no default.
_NEW: dict[str, Any] = {
    "state": "queued",
    "failure_message": "",
    "num_resets": 0,
    "num_failures": 0,
    "execution_logs": [],
    "worker_hostname": "",
    "cancel": False,
    "lease_number": 0,
}


class _WorkerFields(NamedTuple):
    """The fields that ``save()`` leaves out, by our columns, as long as the record has this primary key."""

    pk: Any
    columns: Mapping[str, str]
    #: The values that were loaded.
    values: Mapping[str, Any]


def leave_out(record: Any, columns: Mapping[str, str]) -> None:
    """Let ``save()`` of this record leave out some fields. Its copies do the same, until they get another key.

    A copy with another key is a new record: ``save()`` gives it new values, except those that were assigned.
    """
    loaded = vars(record)
    values = {name: loaded[name] for name in columns.values() if name in loaded}
    record._state.jobchains_worker_fields = _WorkerFields(record.pk, columns, values)


def extend_save(model: Any) -> None:
    """Let ``save()`` of a model's instances heed ``leave_out``. All others are saved as before.

    Every ``save()`` ends in ``save_base()``, whatever a model's own ``save()`` does before.
    """
    save_base = model.save_base
    if hasattr(save_base, "leaves_out"):
        return

    @wraps(save_base)
    def extended(record: Any, *args: Any, **options: Any) -> None:  # ``save()`` passes keyword arguments.
        if not (args or options.get("raw")):
            _renew_copy(record)
        if not (args or options.get("raw") or options.get("force_insert")):
            options["update_fields"] = _updated_fields(record, options.get("using"), options.get("update_fields"))
        save_base(record, *args, **options)

    extended.leaves_out = True  # type: ignore[attr-defined]
    model.save_base = extended


def _renew_copy(record: Any) -> None:
    """If a record has got another primary key since it was handled, treat it as a new record that waits."""
    worker_fields: _WorkerFields | None = getattr(record._state, "jobchains_worker_fields", None)
    if worker_fields is None or worker_fields.pk == record.pk:
        return
    del record._state.jobchains_worker_fields
    for column, name in worker_fields.columns.items():
        if name in worker_fields.values and vars(record)[name] == worker_fields.values[name]:
            field = record._meta.get_field(name)
            has_default = field.has_default() or field.has_db_default() or field.null
            setattr(record, name, field.get_default() if has_default else _NEW.get(column, vars(record)[name]))


def _updated_fields(record: Any, using: str | None, update_fields: Collection[str] | None) -> Collection[str] | None:
    """Return the ``update_fields`` with which to save a record: fewer, unless the caller of ``save()`` named them."""
    worker_fields: _WorkerFields | None = getattr(record._state, "jobchains_worker_fields", None)
    if worker_fields is None or using not in (None, record._state.db):
        return update_fields
    meta = record._meta
    names = {field.attname for field in meta.concrete_fields if not field.primary_key}
    loaded: set[str] = names - record.get_deferred_fields()
    # If some fields are deferred, Django itself names all the loaded ones.
    if update_fields is not None and not loaded.issubset(update_fields):
        return update_fields
    # With the key, which is never updated, because Django would save all fields if none were named.
    return {meta.pk.attname} | loaded - set(worker_fields.columns.values())
