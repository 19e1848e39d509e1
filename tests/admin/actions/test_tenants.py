"""A subclass can decide by the row which actions a user may perform."""

from typing import Any

import pytest
from django.http import HttpRequest

from django_jobchains.admin import ChainAdmin, JobAdmin
from tests.admin.actions.browsing import PERMISSIONS, act, act_many, answers, messages_in, url
from tests.admin.actions.conftest import Parcel, pack
from tests.support.chains import everything, failed, scheduled, ship


@pytest.fixture(autouse=True)
def _untouchable_rows(monkeypatch):
    """The user may view rows of the type ``shop.ship``, but not change them."""
    for admin_class in (ChainAdmin, JobAdmin):
        monkeypatch.setattr(admin_class, "may", _unless_untouchable(admin_class.may))


def _unless_untouchable(may: Any) -> Any:
    def own_may(self: Any, request: HttpRequest, permission: str, obj: Any = None) -> bool:
        return may(self, request, permission, obj) and (obj is None or obj.type_name != ship.name)

    return own_may


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_a_row_that_the_user_may_not_change_is_refused(superuser, store, verb):
    chain = failed(store) if verb == "retry" else scheduled(store).refresh()
    before = everything()
    assert superuser.get(url(verb, chain)).status_code == 403
    assert act(superuser, verb, chain).status_code == 403
    reply = act_many(superuser, verb, [chain], **answers(verb, chain))
    assert messages_in(reply) == [f"1 row skipped: not allowed ({chain.id})."]
    assert everything() == before


def test_a_cascade_is_refused_if_the_user_may_not_delete_all(superuser, store):
    chain = pack.enqueue(Parcel(1), blockers=[ship.enqueue()])
    before = everything()
    reply = act(superuser, "delete", chain, cascade="on")
    assert messages_in(reply) == ["Nothing was changed: the chains waited for chains that you may not delete."]
    assert everything() == before
    assert messages_in(act(superuser, "delete", chain))[-1] == "1 chain deleted."
