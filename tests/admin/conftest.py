"""People who look at the admin, each with what they may do."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

#: What a person needs to see the lists and pages; the rest is given by name.
VIEW = ("view_chain", "view_job")


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """``staff("retry_job")`` is the browser of somebody who may see the pages, and retry."""

    def log_in(*permissions: str, view: bool = True) -> Client:
        user = User.objects.create_user(f"staff-{User.objects.count()}", is_staff=True)
        wanted = {*permissions, *(VIEW if view else ())}
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label="django_jobchains", codename__in=wanted)
        )
        assert user.user_permissions.count() == len(wanted), f"Unknown among {sorted(wanted)}."
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def superuser(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client
