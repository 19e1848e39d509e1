"""The URL after an action is always on the same site."""

import pytest

from tests.admin.browsing import act, act_many, choose_action, text_of, url
from tests.support.chains import failed, scheduled

#: URLs of other sites that a forged link to the admin could contain.
ELSEWHERE = (
    "https://evil.example/",
    "//evil.example/",
    "/\\evil.example",
    "javascript:alert(1)",
    "\x08//evil.example",
    "https://testserver@evil.example/",
)


@pytest.fixture
def chain(store):
    return scheduled(store).refresh()


def test_one_row_leads_to_its_page_and_several_to_the_list(superuser, chain):
    assert act(superuser, "run_now", chain)["Location"] == url("change", chain)
    assert act_many(superuser, "cancel", [chain])["Location"] == url("changelist")


def test_a_next_url_on_another_site_is_ignored(superuser, chain):
    for vector in ELSEWHERE:
        assert vector not in text_of(superuser.get(url("cancel", chain), {"next": vector}))
        assert act(superuser, "cancel", chain, next=vector)["Location"] == url("change", chain)
        assert act_many(superuser, "cancel", [chain], next=vector)["Location"] == url("changelist")


def test_a_page_can_set_the_next_url(superuser, chain):
    wanted = url("changelist") + "?q=shop"
    assert f'href="{wanted}"' in text_of(superuser.get(url("cancel", chain), {"next": wanted}))
    invalid = act_many(superuser, "reschedule", [chain], next=wanted, delay_minutes="x")
    assert invalid.context["next"] == wanted
    assert f'action="{url("reschedule_many")}"' in text_of(invalid)
    assert act(superuser, "cancel", chain, next=wanted)["Location"] == wanted


def test_the_list_keeps_its_filters(superuser, store):
    chain, query = failed(store), "?status=failed"
    wanted = url("changelist") + query
    assert f'name="next" value="{wanted}"' in text_of(choose_action(superuser, "retry", [chain], query=query))
    assert act_many(superuser, "retry", [chain], next=wanted)["Location"] == wanted
