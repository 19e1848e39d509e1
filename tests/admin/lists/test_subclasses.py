"""What a project may change of a list."""

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import RequestFactory

from django_jobchains.admin import JobAdmin
from django_jobchains.models import Job
from tests.queries.shapes import rows

pytestmark = pytest.mark.django_db


class ShopJobs(JobAdmin):
    list_per_page = 2

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(type_name__startswith="shop.")

    def get_list_display(self, request: Any) -> list[Any]:
        return [*super().get_list_display(request), "priority"]


def seen(**query: str) -> str:
    request = RequestFactory().get("/", query)
    request.user = User.objects.create_superuser(f"root-{User.objects.count()}")
    reply: Any = ShopJobs(Job, admin.site).changelist_view(request)
    return str(reply.render().content.decode())


def test_rows_that_a_subclass_leaves_out_are_in_no_list_and_found_by_no_search() -> None:
    rows(1, priority=77)
    [hidden] = rows(1, type_name="other.canary", deduplication_key="hidden-key", queue="canary-queue")
    for query in (
        {},
        {"q": str(hidden)},
        {"q": str(hidden)[:13]},
        {"q": "hidden-key"},
        {"q": "other."},
        {"status": "open"},
    ):
        assert "canary-queue" not in seen(**query)
    assert '<td class="field-priority">77</td>' in seen()


def test_a_subclass_has_pages_of_its_own_length() -> None:
    rows(3)
    page = seen()
    assert page.count('class="field-priority"') == 2
    assert "Next page" in page


@pytest.mark.parametrize("term", ["\0", "a\0b", "shop.\0"])
def test_a_search_that_no_form_has_looked_at_finds_nothing_for_what_no_database_can_hold(term: str) -> None:
    rows(1)
    request = RequestFactory().get("/")
    request.user = User.objects.create_superuser("root")
    found, _ = ShopJobs(Job, admin.site).get_search_results(request, Job.objects.all(), term)
    assert list(found) == []
