"""Requests of a user who clicks through the pages of records."""

from collections.abc import Iterable
from typing import Any

from django.contrib.admin.utils import quote
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from django_jobchains.records.operations import record_types_of
from tests.records.models import Upload

VERBS = ("retry", "requeue", "cancel")
#: For each action: the states that it changes, and the new states.
MOVES = {
    "retry": dict.fromkeys(("failed", "errored", "cancelled"), "queued"),
    "requeue": dict.fromkeys(("failed", "errored", "cancelled", "processing"), "queued"),
    "cancel": {"queued": "cancelled", "errored": "cancelled", "processing": "processing"},
}
STATES = ("queued", "processing", "completed", "errored", "failed", "cancelled", "uploading")


def put(model: type[Model] = Upload, state: str = "failed", **values: Any) -> Any:
    """Create a record with these values, given by the names of our columns."""
    kind = record_types_of(model)[0]
    own = {name: values.pop(name) for name in list(values) if name not in kind.columns}
    ours = {kind.columns[name]: value for name, value in {"state": state, **values}.items()}
    record = model._default_manager.create(**own, **ours)
    record.refresh_from_db()
    return record


def url(name: str, record: Model | None = None, model: type[Model] = Upload) -> str:
    meta = (type(record) if record is not None else model)._meta
    arguments = [quote(record.pk)] if record is not None else []
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_{name}", args=arguments)


def state_of(record: Model) -> str:
    record.refresh_from_db()
    kind = record_types_of(type(record))[0]
    return str(kind.value(record, "state"))


def act(client: Client, verb: str, record: Model, **answers: Any) -> Any:
    return client.post(url(f"record_{verb}", record), answers)


def ticked(rows: Iterable[Model]) -> dict[str, Any]:
    return {"_selected_action": [str(row.pk) for row in rows]}


def choose_action(client: Client, verb: str, rows: Iterable[Model], model: type[Model] = Upload) -> Any:
    answer = {"action": verb, "index": "0", "select_across": "0", **ticked(rows)}
    return client.post(url("changelist", model=model), answer)


def act_many(client: Client, verb: str, rows: Iterable[Model], model: type[Model] = Upload, **answers: Any) -> Any:
    return client.post(url(f"record_{verb}_many", model=model), {**ticked(rows), **answers})
