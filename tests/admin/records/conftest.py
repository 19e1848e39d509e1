"""Registered record models, and clients of users with different permissions."""

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_jobchains.processors import Processors, Registry
from tests.records.models import LETTER_COLUMNS, Export, Letter, Upload


@pytest.fixture(autouse=True)
def processors(monkeypatch):
    """Return the only slice of the project, which handles the records of all models."""
    registry, part = Registry(), Processors()
    part.records(Upload, retry_after=60)(lambda record, run: None)
    part.records(Export, name="exports")(lambda record, run: None)
    part.records(Letter, columns=LETTER_COLUMNS)(lambda record, run: None)
    registry.add(part)
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    return part


@pytest.fixture
def member(db):
    """Return a function: ``member("change_upload")`` is a client of a staff user with this permission."""

    def log_in(*codenames: str) -> Client:
        user = User.objects.create_user(f"member-{User.objects.count()}", is_staff=True)
        wanted = Permission.objects.filter(
            content_type__app_label__in=("django_jobchains", "records"), codename__in=codenames
        )
        user.user_permissions.set(wanted)
        assert user.user_permissions.count() == len(codenames), f"unknown permission among {codenames}"
        client = Client()
        client.force_login(user)
        return client

    return log_in
