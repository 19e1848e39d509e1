"""Clients of users with different permissions."""

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import translation

#: The permissions to view the lists and pages. Tests name all others.
VIEW = ("view_chain", "view_job")


@pytest.fixture(autouse=True)
def _language():
    """Restore the language, because the one that a request activates stays active."""
    with translation.override("en"):
        yield


@pytest.fixture
def staff(db):
    """Return a function: ``staff("retry_job")`` is a client of a user who may view the pages, and retry."""

    def log_in(*permissions: str, view: bool = True) -> Client:
        user = User.objects.create_user(f"staff-{User.objects.count()}", is_staff=True)
        wanted = {*permissions, *(VIEW if view else ())}
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label="django_jobchains", codename__in=wanted)
        )
        assert user.user_permissions.count() == len(wanted), f"unknown permission among {sorted(wanted)}"
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def superuser(db):
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client
