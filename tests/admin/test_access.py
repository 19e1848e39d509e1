"""Access to the pages requires a login and the view permission."""

import pytest
from django.test import Client
from django.urls import reverse

LISTS = ("chain", "job")


@pytest.mark.parametrize("name", LISTS)
def test_lists_require_a_login_and_the_view_permission(staff, name):
    address = reverse(f"admin:django_jobchains_{name}_changelist")
    reply = Client().get(address)
    assert (reply.status_code, "/login/" in reply["Location"]) == (302, True)
    assert staff(view=False).get(address).status_code == 403
    assert staff().get(address).status_code == 200
