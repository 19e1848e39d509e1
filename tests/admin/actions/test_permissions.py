"""Each action requires exactly its own permission: for one row, several rows and forged requests."""

import pytest
from django.test import Client

from django_jobchains.chains import Chain
from django_jobchains.db.ids import new_id
from django_jobchains.store import Store
from tests.admin.actions.browsing import (
    PERMISSIONS,
    act,
    act_many,
    answers,
    choose_action,
    text_of,
    url,
)
from tests.support.chains import everything, failed, scheduled

ALL = {*PERMISSIONS.values(), "enqueue_job", "view_payload"}

allowed_or_not = pytest.mark.parametrize("is_allowed", [True, False], ids=["its permission", "all others"])


def permissions(verb: str, is_allowed: bool) -> set[str]:
    return {PERMISSIONS[verb]} if is_allowed else ALL - {PERMISSIONS[verb]}


def a_chain_for(verb: str, store: Store) -> Chain:
    return failed(store) if verb == "retry" else scheduled(store).refresh()


@allowed_or_not
@pytest.mark.parametrize("verb", PERMISSIONS)
def test_an_action_requires_its_own_permission(staff, store, verb, is_allowed):
    chain, client = a_chain_for(verb, store), staff(*permissions(verb, is_allowed))
    before = everything()
    assert client.get(url(verb, chain)).status_code == (200 if is_allowed else 403)
    assert everything() == before, "the confirmation page must not change anything"
    assert act(client, verb, chain).status_code == (302 if is_allowed else 403)
    assert (everything() != before) is is_allowed


@allowed_or_not
@pytest.mark.parametrize("verb", PERMISSIONS)
def test_an_action_on_several_rows_requires_the_permission(staff, store, verb, is_allowed):
    rows, client = [a_chain_for(verb, store) for _ in range(2)], staff(*permissions(verb, is_allowed))
    before = everything()
    shown = text_of(client.get(url("changelist")))
    assert (f'<option value="{verb}">' in shown) is is_allowed, "the list must offer exactly the allowed actions"
    assert choose_action(client, verb, rows).status_code == (200 if is_allowed else 403)
    assert everything() == before, "the confirmation page must not change anything"
    reply = act_many(client, verb, rows, **answers(verb, *rows))
    assert reply.status_code == (302 if is_allowed else 403)
    assert (everything() != before) is is_allowed


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_actions_require_the_view_permission(staff, store, verb):
    chain, client = a_chain_for(verb, store), staff(PERMISSIONS[verb], view=False)
    before = everything()
    assert client.get(url(verb, chain)).status_code == 403
    assert act(client, verb, chain).status_code == 403
    assert everything() == before


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_without_the_permission_responses_do_not_reveal_which_rows_exist(staff, store, verb):
    client = staff(*permissions(verb, is_allowed=False))
    assert client.get(url(verb, Chain(id=new_id()))).status_code == 403


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_the_page_for_several_rows_rejects_get(superuser, store, verb):
    before = everything()
    assert superuser.get(url(f"{verb}_many")).status_code == 405
    assert everything() == before


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_a_post_without_the_csrf_token_changes_nothing(superuser, store, verb):
    chain = a_chain_for(verb, store)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = superuser.cookies
    before = everything()
    assert act(strict, verb, chain).status_code == 403
    if verb in PERMISSIONS:
        assert choose_action(strict, verb, [chain]).status_code == 403
        assert act_many(strict, verb, [chain], **answers(verb, chain)).status_code == 403
    assert everything() == before


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_anonymous_users_are_redirected_to_the_login(client, store, verb):
    chain = a_chain_for(verb, store)
    before = everything()
    assert "/login/" in client.get(url(verb, chain))["Location"]
    assert "/login/" in act(client, verb, chain)["Location"]
    assert everything() == before
