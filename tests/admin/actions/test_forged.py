"""Forged requests: all rows at once, malformed ids, and too many ids."""

from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client, override_settings

from django_jobchains import chains
from django_jobchains.db.ids import new_id
from django_jobchains.models import Chain, Job
from tests.admin.actions.browsing import PERMISSIONS, act_many, answers, messages_in, text_of, ticked, url
from tests.support.chains import everything, ship

ACTIONS = [
    (model, verb) for model in ("chain", "job") for verb in PERMISSIONS if not (model == "job" and verb == "delete")
]
every_action = pytest.mark.parametrize(("model", "verb"), ACTIONS)


def rows_for(model: str, verb: str, count: int = 2) -> list[Any]:
    made = chains.enqueue_many([ship.item(delay=3600) for _ in range(count)])
    if verb == "retry":
        Job.objects.update(status="failed")
    kind: Any = Chain if model == "chain" else Job
    return list(kind.objects.filter(pk__in=[chain.pk for chain in made]))


def submit_list(client: Client, model: str, verb: str | list[str], **forged: Any) -> Any:
    return client.post(url("changelist", model=model), {"action": verb, "index": "0", **forged})


@every_action
def test_all_rows_of_the_list_cannot_be_selected(superuser, store, model, verb):
    row, _other = rows_for(model, verb)
    before = everything()
    for across in ("1", "true", "", ["1", "0", "1"]):
        reply = submit_list(superuser, model, verb, select_across=across, **ticked([row]))
        assert messages_in(reply)[-1].startswith("Nothing was changed: select 1 to ")
        assert everything() == before


@every_action
def test_only_the_selected_rows_are_changed(superuser, store, model, verb):
    row, other = rows_for(model, verb)
    reply = submit_list(superuser, model, verb, select_across=["1", "0"], **ticked([row]))
    assert str(other.pk) not in text_of(reply)
    act_many(superuser, verb, [row], model, select_across="1", action=verb, **answers(verb, row))
    assert [entry.object_id for entry in LogEntry.objects.all()] == [str(row.pk)]
    assert Job.objects.filter(pk=other.pk).values("status", "run_at").get() == {
        "status": "failed" if verb == "retry" else "pending",
        "run_at": other.run_at if model == "job" else other.current_job.run_at,
    }


JUNK = ["x", "", "../1", "' OR 1=1 --", "0" * 33, "\0", "0" * 31 + "\0", "é" * 32, "9" * 100_000, "None", "[]"]


@every_action
def test_malformed_ids_are_a_bad_request(superuser, store, model, verb):
    [row] = rows_for(model, verb, 1)
    before = everything()
    # Every action parses ids in the same function.
    for junk in JUNK if (model, verb) == ACTIONS[0] else JUNK[:2]:
        ids = {"_selected_action": [row.pk, junk]}
        assert submit_list(superuser, model, verb, **ids).status_code == 400, junk
        for more in ({}, {"ask": ""}):
            reply = superuser.post(url(f"{verb}_many", model=model), {**ids, **answers(verb, row), **more})
            assert reply.status_code == 400, junk
    assert everything() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "verb", "most_fields"),
    [(*each, 1000) for each in ACTIONS[:2]] + [("chain", "complete", None), ("job", "cancel", None)],
)
def test_ten_thousand_ids_are_refused(superuser, store, model, verb, most_fields):
    [row] = rows_for(model, verb, 1)
    before = everything()
    ids = ticked([row.pk, *(new_id() for _ in range(9_999))])
    form = urlencode({"action": verb, **ids, **answers(verb, row)}, doseq=True)
    with override_settings(DATA_UPLOAD_MAX_NUMBER_FIELDS=most_fields):
        list_reply, reply = (
            superuser.post(url(name, model=model), form, "application/x-www-form-urlencoded")
            for name in ("changelist", f"{verb}_many")
        )
    assert list_reply.status_code == (302 if most_fields is None else 400)
    assert reply.status_code == 400
    assert everything() == before


@every_action
def test_without_ids_nothing_is_changed(superuser, store, model, verb):
    before = everything()
    assert submit_list(superuser, model, verb).status_code == 302
    assert act_many(superuser, verb, [], model).status_code == 400
    assert everything() == before


@pytest.mark.parametrize("model", ["chain", "job"])
def test_an_unknown_action_does_nothing(superuser, store, model):
    rows = rows_for(model, "cancel")
    before = everything()
    for index in ("0", "x", "99", "-1", "\0", "9" * 5000):
        for action in ("nothing", "\0", "delete_selected", "__init__", ["cancel", "nothing"]):
            reply = submit_list(superuser, model, action, index=index, **ticked(rows))
            assert reply.status_code in (200, 302, 400)
    assert everything() == before
