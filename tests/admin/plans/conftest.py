"""Jobs of half a year: some of those that ``benchmarks.admin`` measures with."""

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from pytest_django import DjangoDbBlocker

from benchmarks.admin.filling import make_user, write
from benchmarks.admin.places import Places
from benchmarks.admin.sizes import Sizes
from benchmarks.admin.visiting import operator
from benchmarks.admin.writing import statements
from tests.admin.plans.reading import TABLES

JOBS = 50_000


@pytest.fixture(scope="package")
def places(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Places]:
    """Of the rows, which are committed, and looked for once."""
    with django_db_blocker.unblock():
        with statements() as run:
            write(run, Sizes(JOBS), lambda text: None)
            run("VACUUM")  # an index alone serves what all transactions see
        yield Places.find()
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {', '.join(TABLES)}")


@pytest.fixture(scope="package")
def browser(places: Places, django_db_blocker: DjangoDbBlocker) -> Iterator[Client]:
    """Of the superuser, who may see everything."""
    with django_db_blocker.unblock():
        make_user()
        yield operator()
        User.objects.all().delete()
