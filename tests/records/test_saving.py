"""``record.save()`` in a handler writes the columns of the project, and leaves those of the worker as they are."""

import copy
import pickle
from datetime import timedelta

import pytest
from django.db import DatabaseError
from django.utils import timezone

from django_jobchains.records import RecordProcessor
from tests.records.models import LETTER_COLUMNS, Letter, Repository, Upload

pytestmark = pytest.mark.django_db(transaction=True)

TOMORROW = timezone.now() + timedelta(days=1)
YESTERDAY = timezone.now() - timedelta(days=1)
#: What others may write while a handler runs.
LATER = {
    "state": "uploading",
    "cancel": True,
    "lease_number": 9,
    "num_resets": 3,
    "last_heartbeat_at": TOMORROW,
    "process_after": TOMORROW,
    "execution_logs": [{"key": "of another attempt"}],
}


def save_copy(record):
    copy.copy(record).save()


def save_pickled(record):
    pickle.loads(pickle.dumps(record)).save()


@pytest.mark.parametrize("queryset", [Upload.objects.all(), Upload.objects.only("size")], ids=["all", "deferred"])
@pytest.mark.parametrize("save", [Upload.save, save_copy, save_pickled])
def test_save_writes_only_the_columns_of_the_project(handled, save, queryset):
    def handle(record, run):
        record.refresh_from_db(fields=["cancel"])
        record.full_clean()
        assert (record.state, record.num_failures, record.cancel) == ("processing", 0, False)
        Upload.objects.update(**LATER)
        record.size = 8
        save(record)

    handled(handle, {"queryset": queryset}, repository=Repository.objects.create(), result="a")
    assert Upload.objects.values("size", *LATER).get() == {"size": 8, **LATER}


def test_update_fields_may_name_a_column_of_the_worker(handled):
    def handle(record, run):
        record.process_after, record.size = TOMORROW, 8
        record.save(update_fields=["process_after"])

    upload = handled(handle)
    assert (upload.state, upload.process_after, upload.size) == ("completed", TOMORROW, 0)


@pytest.mark.parametrize("options", [{}, {"force_insert": True}])
def test_a_clone_is_a_new_record_that_waits(handled, options):
    attempts = []

    def handle(record, run):
        attempts.append((run.attempt, record.lease_number))
        run.add_log("size", "measure")
        record.refresh_from_db(fields=["size"])
        if record.size == 4:
            Upload.objects.update(cancel=True)
            record.pk, record.size, record.process_after = None, 5, YESTERDAY
            record.save(**options)
            copied = Upload.objects.get(pk=record.pk)
            assert (copied.state, copied.started_at, copied.worker_hostname) == ("queued", None, "")
            assert copied.queued_at > Upload.objects.get(size=4).queued_at
            record.state = "uploading"  # It is saved like any other row.
            record.save()
            assert Upload.objects.get(pk=record.pk).state == "uploading"
            Upload.objects.filter(pk=record.pk).update(state="queued")

    handled(handle, size=4, num_failures=2)
    assert attempts == [(3, 1), (1, 1)]
    assert list(Upload.objects.order_by("size").values_list("state", "size", "num_failures", "process_after")) == [
        ("completed", 4, 2, None),
        ("completed", 5, 0, YESTERDAY),
    ]


def test_a_clone_of_a_model_without_defaults_waits(handled):
    def send(record, run):
        if record.code == "a":
            record.code = "b"
            record.save()

    handled(send, {"columns": LETTER_COLUMNS}, Letter, code="a")
    assert list(Letter.objects.order_by("code").values_list("code", "status", "attempt_number")) == [
        ("a", "completed", 1),
        ("b", "completed", 1),
    ]


def test_a_deleted_record_is_not_created_again(handled):
    errors = []

    def handle(record, run):
        Upload.objects.all().delete()
        with pytest.raises(DatabaseError) as raised:
            record.save()
        errors.append(raised.value)

    handled(handle)
    assert errors
    assert not Upload.objects.exists()


def test_async_handlers_and_hooks_may_save_and_other_instances_save_all_columns(handled):
    class Count(RecordProcessor[Upload]):
        def pre_handle(self, record):
            record.size = 1
            record.save()

        async def handle(self, record, run):
            other = await Upload.objects.aget()
            other.process_after = TOMORROW
            await other.asave()
            record.size += record.num_failures + record.lease_number
            await record.asave()

        def post_handle(self, record):
            record.size += 1
            record.save()

    upload = handled(Count)
    assert (upload.state, upload.size, upload.process_after) == ("completed", 3, TOMORROW)


def test_a_model_with_other_column_names_and_no_other_columns(handled):
    def send(record, run):
        Letter.objects.update(stop=True)
        record.save()

    letter = handled(send, {"columns": LETTER_COLUMNS}, Letter, code="a")
    assert (letter.status, letter.stop) == ("completed", True)
