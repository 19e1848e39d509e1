"""The limits on the number of rows that an action changes, and that pages and messages list."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.admin.actions import confirmed, row_actions
from django_jobchains.db.ids import new_id
from django_jobchains.models import Chain
from django_jobchains.store import Store
from tests.admin.actions.browsing import PERMISSIONS, act_many, answers, choose_action, messages_in, text_of, url
from tests.support.chains import everything, ship
from tests.support.jobs import claim, failed_try


def rows_for(verb: str, store: Store, count: int) -> list[Chain]:
    made = chains.enqueue_many([ship.item() for _ in range(count)])
    if verb == "retry":
        store.attempts.fail([failed_try(job) for job in claim(store)])
    return made


@pytest.mark.parametrize("model", ["chain", "job"])
@pytest.mark.parametrize("verb", [verb for verb in PERMISSIONS if verb != "complete"])
def test_the_number_of_statements_does_not_depend_on_the_number_of_rows(superuser, store, verb, model):
    if (verb, model) == ("delete", "job"):
        return
    counts = []
    for number in (2, 200):
        rows = rows_for(verb, store, number)
        with CaptureQueriesContext(connection) as page_queries:
            assert choose_action(superuser, verb, rows, model).status_code == 200
        with CaptureQueriesContext(connection) as action_queries:
            reply = act_many(superuser, verb, rows, model, **answers(verb, *rows))
        assert len(messages_in(reply)) == 1
        counts.append((len(page_queries), len(action_queries)))
    (few_page, few_action), (many_page, many_action) = counts
    assert many_page <= few_page
    # SQLite limits the number of values in an INSERT, so many log entries take several statements.
    assert many_action <= few_action + 2


@pytest.mark.parametrize("model", ["chain", "job"])
def test_each_completion_takes_the_same_number_of_statements(superuser, store, model):
    page_counts, action_counts = [], []
    for number in (1, 2, 40):
        rows = [chain.refresh() for chain in rows_for("complete", store, number)]
        chosen = [row.current_job for row in rows] if model == "job" else rows
        with CaptureQueriesContext(connection) as queries:
            assert choose_action(superuser, "complete", chosen, model).status_code == 200
        page_counts.append(len(queries))
        with CaptureQueriesContext(connection) as queries:
            reply = act_many(superuser, "complete", chosen, model, **answers("complete", *chosen))
        assert messages_in(reply) == [f"{number} job{'s' if number > 1 else ''} completed."]
        action_counts.append(len(queries))
    assert page_counts[2] <= page_counts[1]
    of_one = action_counts[1] - action_counts[0]
    assert action_counts[2] <= action_counts[1] + 38 * of_one
    assert of_one <= 20


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_more_rows_than_allowed_are_refused(superuser, store, monkeypatch, verb):
    [kind] = [type(each) for each in row_actions.CHAIN_ACTIONS if each.name == verb]
    monkeypatch.setattr(kind, "max_rows", 2)
    rows = rows_for(verb, store, 3)
    before = everything()
    reply = choose_action(superuser, verb, rows)
    assert (reply.status_code, messages_in(reply)) == (302, ["Nothing was changed: select 1 to 2 rows."])
    assert act_many(superuser, verb, rows, **answers(verb, *rows)).status_code == 400
    assert everything() == before


def test_the_page_lists_the_first_rows_and_submits_all(superuser, store, monkeypatch):
    monkeypatch.setattr(confirmed, "MAX_LISTED_ROWS", 2)
    rows = rows_for("cancel", store, 5)
    page = text_of(choose_action(superuser, "cancel", rows))
    assert sum(f'href="{url("change", row)}"' in page for row in rows) == 2
    assert "and 3 more" in page
    assert all(f'name="_selected_action" value="{row.pk}"' in page for row in rows)


def test_a_message_names_some_of_the_skipped_rows(superuser, store):
    gone = [new_id() for _ in range(8)]
    [message] = messages_in(act_many(superuser, "cancel", gone))
    assert message.startswith("8 rows skipped: no longer exists (")
    assert sum(str(id_) in message for id_ in gone) == 5
