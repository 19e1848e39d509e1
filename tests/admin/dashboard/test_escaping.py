"""Names of jobs and workers are escaped."""

import pytest

from django_jobchains.models import FailedAttempt, Job, WorkerPresence
from tests.admin.dashboard.browsing import fragment, open_dashboard
from tests.admin.dashboard.conftest import fail
from tests.support.jobs import create

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


def shape(element):
    """Return the tags and the names of their attributes, without values and texts."""
    return [(part.tag, sorted(part.attributes)) for part in element.all()]


def fill(store, beat, text):
    beat(f"worker {text}", host=text, version=text[:50], queues=(text,), type_names=(text,), stuck=1)
    beat(f"idle {text}", host=text, queues=("none",), type_names=("none",))
    fail(store, text, queue=text, error=f"Boom: {text}")
    create(store, 2, text, queue=text)


@pytest.mark.parametrize("vector", VECTORS)
def test_names_that_look_like_markup_are_escaped(superuser, store, beat, vector):
    fill(store, beat, vector)
    page = open_dashboard(superuser, fragment())
    assert vector in page.section("queues").text
    assert vector in page.section("types").text
    assert vector in page.section("failing").text
    assert vector in page.section("alerts").text
    assert page.rows("failing")[0][-1] == f"Boom: {vector}"
    assert any(f"worker {vector} {vector}, process 7" == row[0] for row in page.rows("workers"))
    tags = {part.tag for part in page.root.all()}
    assert not tags & {"script", "iframe", "img", "b", "style"}
    for element in page.root.all():
        assert not [name for name in element.attributes if name.startswith("on") or name == "style"], element
        assert element.attributes.get("href", "#").startswith(("#", "/admin/django_jobchains/job/?type="))


def test_unusual_names_do_not_change_the_structure_of_the_page(superuser, store, beat):
    fill(store, beat, "plain")
    plain = shape(open_dashboard(superuser, fragment()).root)
    for model in (FailedAttempt, Job, WorkerPresence):
        model.objects.all().delete()
    fill(store, beat, VECTORS[5])
    assert shape(open_dashboard(superuser, fragment()).root) == plain
