"""Scripts in values of jobs are escaped on confirmation pages and in messages."""

from typing import Any

import pytest

from django_jobchains.models import Job
from django_jobchains.processors import JobType, get_registry
from tests.admin.actions.browsing import PERMISSIONS, act, act_many, answers, choose_action, text_of, url

#: Values for attributes, elements, templates, URLs and format strings.
VECTORS = [
    '</title></textarea>"><script>alert(1)</script><img src=x onerror=alert(1)><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7|add:7 }}{% csrf_token %}%(count)s %s {type}",
    "javascript:alert(1)",
]


@pytest.fixture(params=VECTORS)
def vector(request, monkeypatch):
    name: str = request.param
    monkeypatch.setattr(get_registry(), "declared", {name: JobType(name)})
    return name


@pytest.fixture
def chain(store, vector):
    job_type: JobType[Any, Any] = JobType(vector)
    return job_type.enqueue({vector: vector}, delay=3600).refresh()


def harmless(page: str) -> bool:
    return not any(part in page for part in ("<script>alert", "<img src=x", "<svg onload", "' onmouseover='"))


def test_scripts_are_escaped_on_confirmation_pages(superuser, chain, vector):
    for verb in PERMISSIONS:
        if verb == "retry":
            Job.objects.update(status="failed")
        assert harmless(text_of(superuser.get(url(verb, chain), {"type": vector, "next": vector})))
        Job.objects.update(status="pending")
    assert harmless(text_of(choose_action(superuser, "cancel", [chain])))


def test_scripts_are_escaped_in_invalid_forms(superuser, chain, vector):
    assert harmless(text_of(act(superuser, "complete", chain, payload=vector)))
    typed = dict.fromkeys(("payload", "queue", "priority", "run_at", "deduplication_key"), vector)
    assert harmless(text_of(superuser.post(url("enqueue") + "?type=shop.ship", typed)))
    assert harmless(text_of(superuser.get(url("enqueue"), {"type": vector})))


def test_scripts_are_escaped_in_messages_and_the_history(superuser, chain, vector):
    for verb in ("run_now", "complete", "cancel"):
        superuser.post(url(verb, chain), answers(verb, chain) | {"next": url("changelist")})
        assert harmless(text_of(superuser.get(url("changelist"))))
    act_many(superuser, "cancel", [chain])
    assert harmless(text_of(superuser.get(url("history", chain))))
