"""What goes with a chain is shown before it is deleted, and nothing else goes."""

import pytest
from django.test import Client

from django_jobchains.admin import cascades
from django_jobchains.chains import Chain
from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.admin.actions.browsing import act, act_many, ask_many, said, text_of, url
from tests.interventions.chains_at import everything, go_on, mail, pending, ship


@pytest.fixture
def waiting(store: Store) -> list[Chain]:
    """Each waits for the one before it."""
    first = mail.enqueue()
    second = ship.enqueue(blockers=[first])
    return [first, second, ship.enqueue(blockers=[second])]


def words(page: str) -> str:
    return " ".join(page.split()).replace(" <", "<")


def test_the_page_says_how_much_goes(superuser: Client, waiting: list[Chain]) -> None:
    go_on(waiting[0])
    page = words(text_of(superuser.get(url("delete", waiting[2]))))
    assert "1 chain that you chose: 1 job<" in page
    assert "With the box ticked also 2 chains they waited for; of all: 4 jobs<" in page


def test_alone_the_chain_goes_and_what_it_waited_for_stays(superuser: Client, waiting: list[Chain]) -> None:
    reply = act(superuser, "delete", waiting[2])
    assert said(reply) == ["1 chain deleted."]
    assert reply["Location"] == url("changelist")
    assert set(Job.objects.values_list("chain_id", flat=True)) == {waiting[0].id, waiting[1].id}


def test_with_the_box_ticked_all_it_waited_for_goes_too(superuser: Client, waiting: list[Chain]) -> None:
    other = mail.enqueue()
    reply = act(superuser, "delete", waiting[2], cascade="on")
    assert said(reply) == ["3 chains deleted."]
    assert set(Job.objects.values_list("chain_id", flat=True)) == {other.id}


def test_a_chain_that_others_wait_for_stays_and_the_page_leads_to_them(superuser: Client, waiting: list[Chain]) -> None:
    page = text_of(superuser.get(url("delete", waiting[0])))
    assert f'href="{url("change", waiting[1])}"' in page
    before = everything()
    reply = act(superuser, "delete", waiting[0])
    [message] = said(reply)
    assert message.startswith("Nothing was changed: jobs of other chains wait for")
    assert str(waiting[0].id) in message
    assert everything() == before


def test_chains_that_need_each_other_go_together(superuser: Client, waiting: list[Chain]) -> None:
    assert said(act_many(superuser, "delete", waiting)) == ["3 chains deleted."]
    assert not Job.objects.exists()


def test_all_of_them_or_none(superuser: Client, store: Store, waiting: list[Chain]) -> None:
    before = everything()
    act_many(superuser, "delete", [pending(store), waiting[0]])
    assert len(everything()[0]) == len(before[0]) + 1


def test_a_cascade_that_is_too_large_is_left_to_the_terminal(
    superuser: Client, waiting: list[Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascades, "MOST_CHAINS", 2)
    assert "more chains than can be shown" in text_of(superuser.get(url("delete", waiting[2])))
    before = everything()
    reply = act(superuser, "delete", waiting[2], cascade="on")
    assert "jobchains delete --cascade" in said(reply)[0]
    assert everything() == before


def test_jobs_are_counted_up_to_a_limit(
    superuser: Client, waiting: list[Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascades, "MOST_JOBS", 2)
    assert "more than 2 jobs" in text_of(ask_many(superuser, "delete", waiting))
