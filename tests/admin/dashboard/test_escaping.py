"""What jobs and workers are called does nothing to the page."""

import pytest
from django.test import Client

from django_jobchains.models import FailedAttempt, Job, WorkerPresence
from django_jobchains.store import Store
from tests.admin.dashboard.conftest import Beating, fail
from tests.admin.dashboard.looking import Element, fragment, look
from tests.store.jobs import create

pytestmark = pytest.mark.django_db

VECTORS = (
    "<script>window.hit=1</script>",
    "<img src=x onerror=hit()>",
    '"><svg onload=hit()>',
    "' onmouseover='hit()",
    "</title><script>hit()</script>",
    "</details></table><iframe src=javascript:hit()>",
    "javascript:hit()",
    "{{ 7|add:7 }}{% load log %}",
    "&lt;script&gt;hit()&lt;/script&gt;",
    "<!--<b>",
)


def shape(element: Element) -> list[tuple[str, list[str]]]:
    """Tags and the names of their attributes, without what there is."""
    return [(part.tag, sorted(part.attributes)) for part in element.all()]


def fill(store: Store, beat: Beating, text: str) -> None:
    beat(f"worker {text}", host=text, version=text[:50], queues=(text,), type_names=(text,), stuck=1)
    beat(f"idle {text}", host=text, queues=("none",), type_names=("none",))
    fail(store, text, queue=text, error=f"Boom: {text}")
    create(store, 2, text, queue=text)


@pytest.mark.parametrize("vector", VECTORS)
def test_what_is_named_like_markup_is_text(superuser: Client, store: Store, beat: Beating, vector: str) -> None:
    fill(store, beat, vector)
    page = look(superuser, fragment())
    assert vector in page.section("queues").text
    assert vector in page.section("types").text
    assert vector in page.section("failing").text
    assert vector in page.section("attention").text
    assert page.rows("failing")[0][-1] == f"Boom: {vector}"
    assert any(f"worker {vector} {vector}, process 7" == row[0] for row in page.rows("workers"))
    tags = {part.tag for part in page.root.all()}
    assert not tags & {"script", "iframe", "img", "b", "style"}
    for element in page.root.all():
        assert not [name for name in element.attributes if name.startswith("on") or name == "style"], element
        assert element.attributes.get("href", "#").startswith(("#", "/admin/django_jobchains/job/?type="))


def test_odd_names_leave_the_page_its_shape(superuser: Client, store: Store, beat: Beating) -> None:
    fill(store, beat, "plain")
    plain = shape(look(superuser, fragment()).root)
    for model in (FailedAttempt, Job, WorkerPresence):
        model.objects.all().delete()
    fill(store, beat, VECTORS[5])
    assert shape(look(superuser, fragment()).root) == plain
