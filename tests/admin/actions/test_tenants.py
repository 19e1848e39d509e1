"""A subclass that shows some rows only, or lets some people act on some of them."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.db.models import QuerySet
from django.http import HttpRequest
from django.test import Client
from django.urls import clear_url_caches, path, reverse

from django_jobchains.admin import ChainAdmin, JobAdmin
from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.models import Chain, Job
from django_jobchains.store import Store
from tests.admin.actions.browsing import PERMISSIONS, act, act_many, answers, ask_many, said, text_of, url
from tests.admin.actions.conftest import Parcel, pack
from tests.interventions.chains_at import everything, failed, mail, scheduled, ship

#: Whose jobs are not seen, and whose are seen but not to be touched.
HIDDEN, UNTOUCHABLE = "shop.mail", "shop.ship"


class Tenants(ReadOnlyAdmin):
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).exclude(type_name=HIDDEN)

    def may(self, request: HttpRequest, permission: str, obj: Any = None) -> bool:
        return super().may(request, permission, obj) and (obj is None or obj.type_name != UNTOUCHABLE)


class TenantsChains(Tenants, ChainAdmin):
    pass


class TenantsJobs(Tenants, JobAdmin):
    pass


site = AdminSite()
site.register(Chain, TenantsChains)
site.register(Job, TenantsJobs)
urlpatterns = [path("admin/", site.urls)]


@pytest.fixture(autouse=True)
def _their_admin(settings: Any) -> Iterator[None]:
    settings.ROOT_URLCONF = __name__
    clear_url_caches()
    yield
    clear_url_caches()


def hidden_for(verb: str, store: Store) -> Chain:
    chain = mail.enqueue(delay=3600)
    if verb == "retry":
        Job.objects.filter(pk=chain.pk).update(status="failed")
    return chain.refresh()


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_a_row_that_is_not_shown_is_as_if_it_were_not_there(superuser: Client, store: Store, verb: str) -> None:
    chain = hidden_for(verb, store)
    before = everything()
    assert superuser.get(url(verb, chain)).status_code == 404
    assert act(superuser, verb, chain).status_code == 404
    if verb in PERMISSIONS:
        assert ask_many(superuser, verb, [chain]).status_code == 302
        reply = act_many(superuser, verb, [chain], **answers(verb, chain))
        assert said(reply)[-1] == f"1 left as it is: not there any more ({chain.id})."
    assert everything() == before


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_a_row_that_the_user_may_not_touch_is_refused(superuser: Client, store: Store, verb: str) -> None:
    chain = failed(store) if verb == "retry" else scheduled(store).refresh()
    before = everything()
    assert superuser.get(url(verb, chain)).status_code == 403
    assert act(superuser, verb, chain).status_code == 403
    if verb in PERMISSIONS:
        reply = act_many(superuser, verb, [chain], **answers(verb, chain))
        assert said(reply) == [f"1 left as it is: not allowed ({chain.id})."]
    assert everything() == before


@pytest.mark.parametrize("verb", [verb for verb in PERMISSIONS if verb != "delete"])
def test_jobs_are_as_their_chains(superuser: Client, store: Store, verb: str) -> None:
    chain = hidden_for(verb, store)
    before = everything()
    assert superuser.post(url(verb, chain.current_job, "job"), answers(verb, chain)).status_code == 404
    act_many(superuser, verb, [chain.current_job], "job", **answers(verb, chain))
    assert everything() == before


@pytest.mark.parametrize("kind", [ship, mail])
def test_a_cascade_stops_at_what_the_user_may_not_delete(superuser: Client, store: Store, kind: Any) -> None:
    chain = pack.enqueue(Parcel(1), blockers=[kind.enqueue()])
    before = everything()
    reply = act(superuser, "delete", chain, cascade="on")
    assert said(reply) == ["Nothing was changed: they waited for chains that you may not delete."]
    assert everything() == before
    assert said(act(superuser, "delete", chain))[-1] == "1 chain deleted."


def test_a_key_of_another_tenant_leads_to_no_page_of_theirs(superuser: Client) -> None:
    address = reverse("admin:django_jobchains_chain_enqueue") + f"?type={HIDDEN}"
    answer = {"payload": "1", "deduplication_key": "k"}
    for _ in range(2):
        assert superuser.post(address, answer)["Location"] == reverse("admin:django_jobchains_chain_enqueue")


def test_what_waits_unseen_keeps_a_chain_and_is_not_named(superuser: Client, store: Store) -> None:
    chain = pack.enqueue(Parcel(1))
    hidden = mail.enqueue(blockers=[chain])
    page = text_of(superuser.get(url("delete", chain)))
    assert "chains that you may not delete wait for them" in page
    [message] = said(act(superuser, "delete", chain))
    assert message == f"Nothing was changed: jobs of other chains wait for {chain.id}."
    for text in (page, message):
        assert str(hidden.id) not in text
        assert HIDDEN not in text


def test_what_waits_and_may_be_deleted_too_is_named(superuser: Client, store: Store) -> None:
    chain = pack.enqueue(Parcel(1))
    waiting = pack.enqueue(Parcel(2), blockers=[chain])
    page = text_of(superuser.get(url("delete", chain)))
    assert str(waiting.id) in page
    assert "chains that you may not delete" not in page
