"""How many rows at once, and what of them a page and its messages name."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.admin import acting
from django_jobchains.ids import new_id
from django_jobchains.models import Chain
from django_jobchains.store import Store
from tests.admin.actions.browsing import PERMISSIONS, act_many, answers, ask_many, said, text_of, url
from tests.interventions.chains_at import everything, ship
from tests.store.jobs import claim, failed_try


def rows_for(verb: str, store: Store, count: int) -> list[Chain]:
    made = chains.enqueue_many([ship.item() for _ in range(count)])
    if verb == "retry":
        store.fail([failed_try(job) for job in claim(store)])
    return made


@pytest.mark.parametrize("model", ["chain", "job"])
@pytest.mark.parametrize("verb", [verb for verb in PERMISSIONS if verb != "complete"])
def test_two_take_as_many_statements_as_two_hundred(superuser: Client, store: Store, verb: str, model: str) -> None:
    if (verb, model) == ("delete", "job"):
        return
    counts = []
    for number in (2, 200):
        rows = rows_for(verb, store, number)
        with CaptureQueriesContext(connection) as asking:
            assert ask_many(superuser, verb, rows, model).status_code == 200
        with CaptureQueriesContext(connection) as acting_:
            reply = act_many(superuser, verb, rows, model, **answers(verb, *rows))
        assert len(said(reply)) == 1
        counts.append((len(asking), len(acting_)))
    (few_asking, few_acting), (many_asking, many_acting) = counts
    assert many_asking <= few_asking
    # SQLite takes only so many values in one INSERT of the admin's log.
    assert many_acting <= few_acting + 2


@pytest.mark.parametrize("model", ["chain", "job"])
def test_each_completion_takes_the_same_statements_and_the_page_those_of_one(
    superuser: Client, store: Store, model: str
) -> None:
    asking, acting_ = [], []
    for number in (1, 2, 40):
        rows = [chain.refresh() for chain in rows_for("complete", store, number)]
        chosen = [row.current_job for row in rows] if model == "job" else rows
        with CaptureQueriesContext(connection) as queries:
            assert ask_many(superuser, "complete", chosen, model).status_code == 200
        asking.append(len(queries))
        with CaptureQueriesContext(connection) as queries:
            reply = act_many(superuser, "complete", chosen, model, **answers("complete", *chosen))
        assert said(reply) == [f"{number} job{'s' if number > 1 else ''} completed."]
        acting_.append(len(queries))
    assert asking[2] <= asking[1]
    of_one = acting_[1] - acting_[0]
    assert acting_[2] <= acting_[1] + 38 * of_one
    assert of_one <= 20


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_more_rows_than_allowed_are_refused(
    superuser: Client, store: Store, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    [kind] = [type(each) for each in acting.VERBS_OF_CHAINS if each.name == verb]
    monkeypatch.setattr(kind, "most_at_once", 2)
    rows = rows_for(verb, store, 3)
    before = everything()
    reply = ask_many(superuser, verb, rows)
    assert (reply.status_code, said(reply)) == (302, ["Tick 1 to 2 rows. Nothing was changed."])
    assert act_many(superuser, verb, rows, **answers(verb, *rows)).status_code == 400
    assert everything() == before


def test_the_page_names_the_first_rows_and_carries_all(
    superuser: Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "MOST_SHOWN", 2)
    rows = rows_for("cancel", store, 5)
    page = text_of(ask_many(superuser, "cancel", rows))
    assert sum(f'href="{url("change", row)}"' in page for row in rows) == 2
    assert "and 3 more" in page
    assert all(f'name="_selected_action" value="{row.pk}"' in page for row in rows)


def test_a_message_names_some_of_those_that_are_left(superuser: Client, store: Store) -> None:
    gone = [new_id() for _ in range(8)]
    [message] = said(act_many(superuser, "cancel", gone))
    assert message.startswith("8 left as they are: not there any more (")
    assert sum(str(id_) in message for id_ in gone) == 5
