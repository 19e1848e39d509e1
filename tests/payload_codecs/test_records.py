"""With a codec, the failure messages and execution logs of records are encoded, and every reader decodes them."""

import copy
import pickle

import pytest
from django.core.exceptions import FieldError
from django.db import connection
from django.test import override_settings
from django.urls import reverse

from django_jobchains import records
from django_jobchains.models import DeferredWrite
from django_jobchains.payloads.codecs import ENCODED, Unreadable, decode_text
from django_jobchains.records import PayloadField, PayloadTextField
from django_jobchains.records.checks import check_records
from django_jobchains.store import get_store
from django_jobchains.store.record_tables import RecordEnd
from django_jobchains.testing import run_due_jobs
from tests.payload_codecs.conftest import CANARY, NEW_KEY, OLD_KEY, codec
from tests.records.models import LETTER_COLUMNS, Letter, Upload

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin.records.site")]


every_model = pytest.mark.parametrize("model", [Upload, Letter])


def handle(record, run):
    run.add_log(f"key {CANARY}", ["convert", CANARY]).update(out=f"out {CANARY}", exit_code=1)
    raise ValueError(f"error {CANARY} {'long ' * 500}end")


@pytest.fixture(autouse=True)
def _workers(processors):
    processors.records(Upload)(handle)
    processors.records(Letter, columns=LETTER_COLUMNS)(handle)


def failed(model):
    record = model.objects.create(pk=7 if model is Upload else "a")
    run_due_jobs()
    return model.objects.get(pk=record.pk)


def stored(model):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {connection.ops.quote_name(model._meta.db_table)}")
        return repr(cursor.fetchall())


@every_model
def test_the_table_contains_no_payload_and_the_registration_reads_it(model):
    record = failed(model)
    assert CANARY not in stored(model)
    [kind] = records.operations.record_types_of(model)
    assert (kind.value(record, "failure_message") or "").startswith(f"ValueError: error {CANARY} long")
    [entry] = kind.value(record, "execution_logs")
    assert (entry["key"], entry["command"], entry["out"]) == (f"key {CANARY}", ["convert", CANARY], f"out {CANARY}")


def test_a_model_reads_its_own_columns():
    upload = failed(Upload)
    assert (upload.failure_message or "").endswith("long end")
    assert upload.execution_logs[0]["out"] == f"out {CANARY}"
    [row] = Upload.objects.values_list("failure_message", "execution_logs")
    assert row == (upload.failure_message, upload.execution_logs)
    upload.result = "changed"
    upload.save()
    assert CANARY not in stored(Upload)
    assert Upload.objects.get().failure_message == upload.failure_message
    letter = failed(Letter)
    assert decode_text(letter.error).startswith(f"ValueError: error {CANARY}")


def test_a_message_is_cut_until_it_fits_encoded():
    letter = failed(Letter)
    assert letter.error.startswith(ENCODED)
    assert 80 < len(letter.error) <= 255
    assert len(decode_text(letter.error)) > 60


def test_a_condition_raises():
    for condition in ({"failure_message__contains": "no"}, {"execution_logs__0__key": "x"}):
        with pytest.raises(FieldError, match=r"JOBCHAINS\['PAYLOAD_CODEC'\] encodes it"):
            Upload.objects.filter(**condition)
    assert not Upload.objects.filter(failure_message__isnull=False).exists()


@every_model
def test_values_from_before_the_codec_are_read(model):
    with codec():
        record = failed(model)
    [kind] = records.operations.record_types_of(model)
    record.refresh_from_db()
    assert CANARY in kind.value(record, "failure_message")
    assert CANARY in str(kind.value(record, "execution_logs"))


def test_without_the_key_the_fields_contain_the_reason_and_saving_keeps_the_values():
    before = failed(Upload)
    with codec(NEW_KEY):
        upload = Upload.objects.get()
        for value in (upload.failure_message, str(upload.execution_logs)):
            assert "cannot decode the stored value" in (value or "")
        assert isinstance(upload.execution_logs, Unreadable)
        for instance in (upload, pickle.loads(pickle.dumps(upload)), copy.deepcopy(upload)):
            instance.save()
    with codec():
        Upload.objects.get().save()
    with codec(OLD_KEY):
        upload = Upload.objects.get()
        assert (upload.failure_message, upload.execution_logs) == (before.failure_message, before.execution_logs)


@every_model
@pytest.mark.parametrize("keys", [(OLD_KEY,), (NEW_KEY,)])
def test_the_admin_shows_the_texts_or_the_reason(admin_client, model, keys):
    record = failed(model)
    name = f"admin:records_{model._meta.model_name}"
    with codec(*keys):
        pages = {
            address: admin_client.get(address).content.decode()
            for address in (reverse(f"{name}_changelist"), reverse(f"{name}_change", args=[record.pk]))
        }
    shown = CANARY if keys == (OLD_KEY,) else "cannot decode the stored value"
    for address, page in pages.items():
        assert shown in page, address
        assert ENCODED not in page
    if shown is CANARY:
        assert f"out {CANARY}" in pages[address]
    else:
        assert pages[address].count(shown) >= 2


def test_a_retry_of_an_unreadable_record_needs_no_key():
    upload = failed(Upload)
    with codec(NEW_KEY):
        assert records.retry(Upload.objects.filter(pk=upload.pk)) == 1
        run_due_jobs()
        assert CANARY in (Upload.objects.get().failure_message or "")


def test_the_message_of_a_reset_is_read(processors):
    Upload.objects.create(state="failed", failure_message=f"text {CANARY}")
    assert CANARY not in stored(Upload)
    Upload.objects.update(failure_message=None, execution_logs=[])
    upload = Upload.objects.get()
    assert (upload.failure_message, upload.execution_logs) == (None, [])


def test_fields_that_do_not_decode_are_a_warning():
    found = [problem for problem in check_records() if problem.id == "jobchains.W011"]
    assert [problem.hint for problem in found] == [
        "Use PayloadTextField from django_jobchains.records, and run makemigrations.",
        "Use PayloadField from django_jobchains.records, and run makemigrations.",
    ]
    assert all("Letter" in problem.msg or "letter" in problem.msg for problem in found)
    for settings in ({}, {"PAYLOAD_CODEC": "invalid"}):
        with override_settings(JOBCHAINS=settings):
            assert not [problem for problem in check_records() if problem.id == "jobchains.W011"]


def test_the_fields_need_no_migration():
    assert PayloadTextField().deconstruct()[1] == "django.db.models.TextField"
    assert PayloadField().deconstruct()[1] == "django.db.models.JSONField"


def test_an_end_that_waits_for_a_lock_contains_no_payload():
    [kind] = records.operations.record_types_of(Upload)
    table, store = kind.table("default"), get_store("default")
    upload = Upload.objects.create(state="processing", lease_number=1)
    store.deferred.defer_records(table, [RecordEnd(upload.pk, 1, "failed", message=f"Error: {CANARY}")])
    assert CANARY not in repr(DeferredWrite.objects.values_list("outcome", flat=True))
    assert store.deferred.apply_records(table) == []
    assert Upload.objects.get().failure_message == f"Error: {CANARY}"
