"""Subclasses of the admin classes, as projects write them."""

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import RequestFactory

from django_jobchains.admin import JobAdmin
from django_jobchains.models import Job
from tests.support.chain_shapes import rows

pytestmark = pytest.mark.django_db


class ShopJobs(JobAdmin):
    list_per_page = 2

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).filter(type_name__startswith="shop.")

    def get_list_display(self, request: Any) -> list[Any]:
        return [*super().get_list_display(request), "priority"]


def test_a_subclass_can_change_the_page_size():
    rows(3)
    request = RequestFactory().get("/")
    request.user = User.objects.create_superuser("root")
    reply: Any = ShopJobs(Job, admin.site).changelist_view(request)
    page = str(reply.render().content.decode())
    assert page.count('class="field-priority"') == 2
    assert "Next page" in page


@pytest.mark.parametrize("term", ["\0", "a\0b", "shop.\0"])
def test_an_unvalidated_search_for_a_null_character_finds_nothing(term):
    rows(1)
    request = RequestFactory().get("/")
    request.user = User.objects.create_superuser("root")
    found, _ = ShopJobs(Job, admin.site).get_search_results(request, Job.objects.all(), term)
    assert list(found) == []
