from collections.abc import Callable, Iterator
from functools import partial

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

Migrate = Callable[..., None]


@pytest.fixture
def migrate(transactional_db: None) -> Iterator[Migrate]:
    """Run ``migrate`` for this app, which is fully migrated again after the test."""
    run = partial(call_command, "migrate", "django_jobchains", verbosity=0)
    yield run
    run()


@pytest.fixture
def other(transactional_db: None) -> Iterator[BaseDatabaseWrapper]:
    """A second connection."""
    copy = connection.copy()
    yield copy
    copy.close()
