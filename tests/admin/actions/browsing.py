"""Requests of a user who clicks through the pages, and their results."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from django_jobchains.models import Chain, Job

Row = Chain | Job
#: A response of the test client, which has attributes that its type does not declare.
Reply = Any

#: Each verb, with the permission it requires.
PERMISSIONS = {
    "complete": "complete_job",
    "retry": "retry_job",
    "run_now": "run_job",
    "reschedule": "run_job",
    "cancel": "cancel_job",
    "delete": "delete_chain",
}


def url(name: str, row: Row | None = None, model: str = "chain") -> str:
    return reverse(f"admin:django_jobchains_{model}_{name}", args=[row.pk] if row is not None else [])


def answers(verb: str, *shown: Row) -> dict[str, Any]:
    """Return the form data that the page of an action requires."""
    if verb == "complete":
        jobs = [row.current_job_id if isinstance(row, Chain) else row.pk for row in shown]
        return {"job": jobs, "payload": '{"done": true}'}
    return {"delay_minutes": "90"} if verb == "reschedule" else {}


def act(client: Client, verb: str, chain: Chain, **changes: Any) -> Reply:
    """Confirm the action for one row."""
    return client.post(url(verb, chain), {**answers(verb, chain), **changes})


def ticked(rows: Iterable[Row | UUID]) -> dict[str, Any]:
    return {"_selected_action": [row if isinstance(row, UUID) else row.pk for row in rows]}


def choose_action(client: Client, verb: str, rows: Iterable[Row], model: str = "chain", query: str = "") -> Reply:
    """Select rows of the list and an action, and submit the form."""
    answer = {"action": verb, "index": "0", "select_across": "0", **ticked(rows)}
    return client.post(url("changelist", model=model) + query, answer)


def act_many(client: Client, verb: str, rows: Iterable[Row | UUID], model: str = "chain", **answers: Any) -> Reply:
    """Confirm the action for several rows."""
    return client.post(url(f"{verb}_many", model=model), {**ticked(rows), **answers})


def messages_in(response: Reply) -> list[str]:
    """Return the messages that the next page shows."""
    return [str(message) for message in get_messages(response.wsgi_request)]


def text_of(response: Reply) -> str:
    return str(response.content, "utf-8")
