"""The page shows what will be deleted, and nothing else is deleted."""

import pytest

from django_jobchains.admin.actions import job_action
from django_jobchains.models import Job
from tests.admin.browsing import act, act_many, choose_action, messages_in, text_of, url
from tests.support.chains import everything, go_on, mail, pending, ship


@pytest.fixture
def waiting(store):
    """Create three chains, each of which waits for the previous one."""
    first = mail.enqueue()
    second = ship.enqueue(blockers=[first])
    return [first, second, ship.enqueue(blockers=[second])]


def test_the_page_shows_how_much_is_deleted(superuser, waiting, monkeypatch):
    go_on(waiting[0])
    page = " ".join(text_of(superuser.get(url("delete", waiting[2]))).split()).replace(" <", "<")
    assert "1 selected chain: 1 job<" in page
    assert "If you check the box below, also 2 chains that they waited for. In total: 4 jobs<" in page
    assert 'name="cascade"' in page
    assert 'name="cascade"' not in text_of(superuser.get(url("delete", waiting[0])))
    monkeypatch.setattr(job_action, "MAX_JOBS", 2)
    assert "more than 2 jobs" in text_of(choose_action(superuser, "delete", waiting))


@pytest.mark.parametrize("is_cascade", [False, True])
def test_blockers_are_deleted_only_with_the_cascade(superuser, waiting, is_cascade):
    other = mail.enqueue()
    reply = act(superuser, "delete", waiting[2], **({"cascade": "on"} if is_cascade else {}))
    assert messages_in(reply) == ["3 chains deleted." if is_cascade else "1 chain deleted."]
    assert reply["Location"] == url("changelist")
    kept = {other.id} if is_cascade else {other.id, waiting[0].id, waiting[1].id}
    assert set(Job.objects.values_list("chain_id", flat=True)) == kept


def test_a_chain_that_others_wait_for_is_kept_and_the_page_links_to_them(superuser, store, waiting):
    assert f'href="{url("change", waiting[1])}"' in text_of(superuser.get(url("delete", waiting[0])))
    free = pending(store)
    before = everything()
    for reply in (act(superuser, "delete", waiting[0]), act_many(superuser, "delete", [free, waiting[0]])):
        message = messages_in(reply)[-1]
        assert message == (
            f"Nothing was changed: uncompleted jobs of other chains need {waiting[0].id}, "
            "delete those other chains too."
        )
    assert everything() == before


def test_chains_that_wait_for_each_other_are_deleted_together(superuser, waiting):
    assert messages_in(act_many(superuser, "delete", waiting)) == ["3 chains deleted."]
    assert not Job.objects.exists()


def test_a_cascade_that_is_too_large_is_refused(superuser, waiting, monkeypatch):
    monkeypatch.setattr(job_action, "MAX_CHAINS", 2)
    assert "more chains than can be shown" in text_of(superuser.get(url("delete", waiting[2])))
    before = everything()
    reply = act(superuser, "delete", waiting[2], cascade="on")
    assert "jobchains delete --cascade" in messages_in(reply)[0]
    assert everything() == before
