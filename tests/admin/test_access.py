"""Who sees the pages at all."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

LISTS = ("chain", "job")


@pytest.mark.parametrize("name", LISTS)
def test_nobody_sees_a_list_without_the_permission(staff: Callable[..., Client], name: str) -> None:
    assert staff(view=False).get(reverse(f"admin:django_jobchains_{name}_changelist")).status_code == 403


@pytest.mark.parametrize("name", LISTS)
def test_who_may_view_sees_the_list(staff: Callable[..., Client], name: str) -> None:
    assert staff().get(reverse(f"admin:django_jobchains_{name}_changelist")).status_code == 200


@pytest.mark.parametrize("name", LISTS)
def test_strangers_are_asked_to_log_in(client: Client, name: str) -> None:
    reply = client.get(reverse(f"admin:django_jobchains_{name}_changelist"))
    assert reply.status_code == 302
    assert "/login/" in reply["Location"]
