"""A project whose router sends reads to a replica: operations on records write where ``update()`` and ``save()`` do."""

import pytest
from django.db import connection

from django_jobchains import records
from tests.admin.browsing import act
from tests.records.models import Upload
from tests.support.databases import database

pytestmark = pytest.mark.django_db(transaction=True)

SELECTIONS = {
    "instance": lambda pk: Upload.objects.get(pk=pk),
    "queryset": lambda pk: Upload.objects.filter(pk=pk).order_by("size"),
    "slice": lambda pk: Upload.objects.filter(pk=pk)[:1],
    "unsaved": lambda pk: Upload(pk=pk),
}


class ReadsFromReplica:
    def db_for_read(self, model, **hints):
        return "replica"

    def db_for_write(self, model, **hints):
        return "default"

    def allow_relation(self, *objects, **hints):
        return True


@pytest.fixture
def replica(transactional_db, settings, django_db_blocker):
    """Add an alias of the test database that cannot write, and a router that reads from it."""
    options = connection.settings_dict["OPTIONS"]
    read_only = (
        {"options": "-c default_transaction_read_only=on"}
        if connection.vendor == "postgresql"
        else {"init_command": "PRAGMA query_only = ON", "transaction_mode": "DEFERRED"}
    )
    with database("replica", {"OPTIONS": {**options, **read_only}}, django_db_blocker):
        settings.DATABASE_ROUTERS = [ReadsFromReplica()]
        yield


@pytest.mark.usefixtures("replica")
@pytest.mark.parametrize("select", SELECTIONS.values(), ids=SELECTIONS)
def test_operations_write_to_the_primary(register, select):
    register()
    upload = Upload.objects.create(state="errored")
    assert Upload.objects.get()._state.db == "replica"
    assert records.cancel(select(upload.pk)) == 1
    assert Upload.objects.get().state == "cancelled"


@pytest.mark.usefixtures("replica")
def test_an_explicit_database_is_kept(register):
    register()
    upload = Upload.objects.create(state="errored")
    assert records.cancel(Upload.objects.using("default").filter(pk=upload.pk)) == 1
    with pytest.raises(Exception, match=r"read-?only"):
        records.requeue(Upload.objects.using("replica").filter(pk=upload.pk))


@pytest.mark.usefixtures("replica")
def test_workers_use_only_their_database(handled):
    def handle(record, run):
        run.add_log("size", "measure")
        record.size = 7
        with run.complete():
            record.save()

    upload = handled(handle)
    assert (upload.state, upload.size, len(upload.execution_logs)) == ("completed", 7, 1)


@pytest.mark.usefixtures("record_site", "replica")
def test_actions_of_the_admin_write_to_the_primary(admin_client, register):
    register()
    upload = Upload.objects.create(state="errored")
    act(admin_client, "requeue", upload)
    assert Upload.objects.get().state == "queued"
