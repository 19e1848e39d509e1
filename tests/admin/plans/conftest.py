"""Jobs of half a year, a small version of the data of ``benchmarks.admin``."""

import pytest
from django.contrib.auth.models import User
from django.db import connection

from benchmarks.admin.filling import make_user, write
from benchmarks.admin.places import Places
from benchmarks.admin.sizes import Sizes
from benchmarks.admin.visiting import operator
from benchmarks.admin.writing import statements
from tests.admin.plans.list_reader import ListReader
from tests.admin.plans.reading import TABLES

JOBS = 50_000


@pytest.fixture(scope="package")
def places(django_db_setup, django_db_blocker):
    """Create the rows, commit them, and return places in them that the visits need."""
    with django_db_blocker.unblock():
        with statements() as run:
            write(run, Sizes(JOBS), lambda text: None)
            run("VACUUM")  # index-only scans need a visibility map
        yield Places.find()
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {', '.join(TABLES)}")


@pytest.fixture(scope="package")
def user(places, django_db_blocker):
    """Create and return the superuser, who may view everything."""
    with django_db_blocker.unblock():
        make_user()
        yield User.objects.get()
        User.objects.all().delete()


@pytest.fixture(scope="package")
def browser(user, django_db_blocker):
    with django_db_blocker.unblock():
        return operator()


@pytest.fixture(scope="package")
def lists(user):
    return ListReader(user)
