"""Where one comes to afterwards: never out of the site."""

import pytest
from django.test import Client

from django_jobchains.models import Chain
from django_jobchains.store import Store
from tests.admin.actions.browsing import act, act_many, ask_many, text_of, url
from tests.interventions.chains_at import failed, scheduled

ELSEWHERE = [
    "https://evil.example/",
    "//evil.example/",
    "///evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "http:evil.example",
    "javascript:alert(1)",
    " https://evil.example",
    "\x08//evil.example",
    "https://testserver@evil.example/",
    "ftp://testserver/",
    "data:text/html,x",
]


@pytest.fixture
def chain(store: Store) -> Chain:
    return scheduled(store).refresh()


@pytest.mark.parametrize("vector", ELSEWHERE)
def test_an_address_elsewhere_is_not_gone_to(superuser: Client, chain: Chain, vector: str) -> None:
    assert vector not in text_of(superuser.get(url("cancel", chain), {"next": vector}))
    assert act(superuser, "cancel", chain, next=vector)["Location"] == url("change", chain)
    assert act_many(superuser, "cancel", [chain], next=vector)["Location"] == url("changelist")


def test_without_one_the_row_follows_and_after_several_the_list(superuser: Client, chain: Chain) -> None:
    assert act(superuser, "run_now", chain)["Location"] == url("change", chain)
    assert act_many(superuser, "cancel", [chain])["Location"] == url("changelist")


def test_the_list_keeps_its_filters(superuser: Client, store: Store) -> None:
    chain = failed(store)
    query = "?status=failed"
    page = ask_many(superuser, "retry", [chain], query=query)
    wanted = url("changelist") + query
    assert page.context["next"] == wanted
    assert f'name="next" value="{wanted}"' in text_of(page)
    assert act_many(superuser, "retry", [chain], next=wanted)["Location"] == wanted


def test_a_page_may_say_where_to_go_back_to(superuser: Client, chain: Chain) -> None:
    wanted = url("changelist") + "?q=shop"
    assert f'href="{wanted}"' in text_of(superuser.get(url("cancel", chain), {"next": wanted}))
    assert act(superuser, "cancel", chain, next=wanted)["Location"] == wanted


def test_a_mistake_in_the_form_does_not_lose_the_way_back(superuser: Client, chain: Chain) -> None:
    wanted = url("changelist") + "?q=shop"
    reply = act_many(superuser, "reschedule", [chain], next=wanted, delay_minutes="x")
    assert reply.context["next"] == wanted
    assert f'action="{url("reschedule_many")}"' in text_of(reply)
