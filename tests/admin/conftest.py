"""Clients of users with different permissions, workers, and models with records."""

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import translation

from django_jobchains.processors import Processors
from tests.admin.browsing import browser, text_of, url
from tests.records.models import LETTER_COLUMNS, Export, Letter, Upload
from tests.support.jobs import claim, create, failed_try
from tests.support.worker_rows import worker

#: The permissions to view the lists and pages. Tests name all others.
VIEW = ("view_chain", "view_job", "view_upload")


@pytest.fixture(autouse=True)
def _language():
    """Restore the language, because the one that a request activates stays active."""
    with translation.override("en"):
        yield


@pytest.fixture
def staff(db):
    """Return a function: ``staff("retry_job")`` is a client of a user who may view the pages, and retry."""
    return lambda *permissions, view=True: browser(*permissions, *(VIEW if view else ()))


@pytest.fixture
def superuser(db):
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.fixture
def viewer(staff):
    """A client of a user who may view pages and payloads."""
    return staff("view_payload")


@pytest.fixture
def operator(staff):
    """A client of a user who may view pages and change queues."""
    return staff("change_queuestate")


@pytest.fixture
def open_page(superuser):
    """Return a function that returns the HTML of the page of a job's chain or, with ``model="job"``, of the job.

    That of a job without other steps leads to that of its chain.
    """

    def open_page(job, model="chain", by=None, **parameters):
        row = type(job)(pk=job.chain_id) if model == "chain" else job
        reply = (by or superuser).get(url("change", row, model), parameters, follow=True)
        assert reply.status_code == 200, reply
        return text_of(reply)

    return open_page


@pytest.fixture
def beat(store):
    """Return a function that stores a heartbeat of a worker, with defaults for values that are not given."""
    usual = {"host": "web-1", "version": "1.0", "type_names": ("shop.ship", "shop.mail"), "up_seconds": 120.0}
    return lambda name="main:1:a", **changes: worker(store, name, **{**usual, **changes})


@pytest.fixture
def fail(store):
    """Return a function that creates a job that fails, the only one of its type."""

    def fail(type_name="shop.declined", queue="default", error="Boom: no"):
        create(store, 1, type_name, queue=queue)
        store.attempts.fail([failed_try(job, error=error) for job in claim(store, types=[type_name])])

    return fail


@pytest.fixture
def record_workers(registry):
    """Make the project's only slice one that handles the records of all models, and return it."""
    part = Processors()
    part.records(Upload, retry_after=60)(lambda record, run: None)
    part.records(Export, name="exports")(lambda record, run: None)
    part.records(Letter, columns=LETTER_COLUMNS)(lambda record, run: None)
    registry.add(part)
    return part
