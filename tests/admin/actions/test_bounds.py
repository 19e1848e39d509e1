"""How many rows at once, and what of them a page and its messages name."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.admin import acting
from django_jobchains.ids import new_id
from django_jobchains.models import Chain
from django_jobchains.store import Store
from tests.admin.actions.browsing import FOR_MANY, act_many, answers, ask_many, said, text_of, url
from tests.interventions.chains_at import everything, ship
from tests.store.jobs import claim, failed_try


def rows_for(verb: str, store: Store, count: int) -> list[Chain]:
    made = chains.enqueue_many([ship.item() for _ in range(count)])
    if verb == "retry":
        store.fail([failed_try(job) for job in claim(store)])
    return made


@pytest.mark.parametrize("model", ["chain", "job"])
@pytest.mark.parametrize("verb", FOR_MANY)
def test_two_take_as_many_statements_as_two_hundred(superuser: Client, store: Store, verb: str, model: str) -> None:
    if (verb, model) == ("delete", "job"):
        return
    counts = []
    for number in (2, 200):
        rows = rows_for(verb, store, number)
        with CaptureQueriesContext(
            connection,
        ) as asking:
            assert ask_many(superuser, verb, rows, model).status_code == 200
        with CaptureQueriesContext(connection) as acting_:
            reply = act_many(superuser, verb, rows, model, **answers(verb, rows[0]))
        assert len(said(reply)) == 1
        counts.append((len(asking), len(acting_)))
    (few_asking, few_acting), (many_asking, many_acting) = counts
    assert many_asking <= few_asking
    # SQLite takes only so many values in one INSERT of the admin's log.
    assert many_acting <= few_acting + 2


@pytest.mark.parametrize("verb", FOR_MANY)
def test_more_rows_than_allowed_are_refused(
    superuser: Client, store: Store, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(acting, "MOST_AT_ONCE", 2)
    rows = rows_for(verb, store, 3)
    before = everything()
    reply = ask_many(superuser, verb, rows)
    assert (reply.status_code, said(reply)) == (302, ["Tick 1 to 2 rows. Nothing was changed."])
    assert act_many(superuser, verb, rows, **answers(verb, rows[0])).status_code == 400
    assert everything() == before


def test_select_across_is_no_way_around_the_limit(superuser: Client, store: Store) -> None:
    rows = rows_for("cancel", store, 2)
    before = everything()
    answer = {"action": "cancel", "index": "0", "select_across": "1", "_selected_action": rows[0].pk}
    reply: Any = superuser.post(url("changelist"), answer)
    assert said(reply) == ["Tick 1 to 500 rows. Nothing was changed."]
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


@pytest.mark.parametrize("ids", [["x"], ["../1"], ["' OR 1=1"], ["0" * 33]])
def test_ids_that_are_none_are_a_bad_request(superuser: Client, store: Store, ids: list[str]) -> None:
    answer = {"action": "cancel", "index": "0", "_selected_action": ids}
    assert superuser.post(url("changelist"), answer).status_code == 400
    assert superuser.post(url("cancel_many"), {"_selected_action": ids}).status_code == 400
