"""With a codec, the failure messages and execution logs of records are encoded, and every reader decodes them."""

import copy
import pickle

import pytest
from django.core.exceptions import FieldError
from django.db import connection, transaction
from django.db.models import Case, F, JSONField, OuterRef, Subquery, TextField, Value, When
from django.db.models.functions import Cast, Coalesce, Upper
from django.test import override_settings
from django.urls import reverse

from django_jobchains import records
from django_jobchains.models import DeferredWrite
from django_jobchains.payloads.codecs import Unreadable, decode_text
from django_jobchains.records import PayloadField, PayloadTextField
from django_jobchains.records.checks import check_records
from django_jobchains.store.record_tables import RecordEnd
from django_jobchains.testing import run_due_jobs
from django_jobchains.text.errors import ENCODED
from tests.payloads.codecs.conftest import CANARY, NEW_KEY, OLD_KEY, codec
from tests.records.models import LETTER_COLUMNS, Letter, Upload

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("record_site")]

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


def raw_rows(model):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {connection.ops.quote_name(model._meta.db_table)}")
        return repr(cursor.fetchall())


@every_model
@pytest.mark.parametrize("keys", [(OLD_KEY,), ()], ids=["encoded", "from before the codec"])
def test_the_registration_reads_what_the_table_contains(model, keys):
    with codec(*keys):
        record = failed(model)
    assert (CANARY not in raw_rows(model)) == bool(keys)
    [kind] = records.operations.record_types_of(model)
    record.refresh_from_db()
    assert kind.value(record, "failure_message").startswith(f"ValueError: error {CANARY} long")
    [entry] = kind.value(record, "execution_logs")
    assert (entry["key"], entry["command"], entry["out"]) == (f"key {CANARY}", ["convert", CANARY], f"out {CANARY}")


def test_a_model_reads_its_own_columns():
    upload = failed(Upload)
    assert upload.failure_message.endswith("long end")
    assert upload.execution_logs[0]["out"] == f"out {CANARY}"
    [row] = Upload.objects.values_list("failure_message", "execution_logs")
    assert row == (upload.failure_message, upload.execution_logs)
    upload.result = "changed"
    upload.save()
    assert CANARY not in raw_rows(Upload)
    assert Upload.objects.get().failure_message == upload.failure_message
    Upload.objects.update(failure_message=None, execution_logs=[])
    assert [*Upload.objects.values_list("failure_message", "execution_logs")] == [(None, [])]


def test_a_message_is_cut_until_it_fits_encoded():
    letter = failed(Letter)
    assert letter.error.startswith(ENCODED)
    assert 80 < len(letter.error) <= 255
    assert len(decode_text(letter.error)) > 60
    assert decode_text(letter.error).startswith(f"ValueError: error {CANARY}")


def test_without_the_key_the_fields_contain_the_reason_and_saving_keeps_the_values():
    before = failed(Upload)
    with codec(NEW_KEY):
        upload = Upload.objects.get()
        for value in (upload.failure_message, str(upload.execution_logs)):
            assert "cannot decode the stored value" in value
        assert isinstance(upload.execution_logs, Unreadable)
        for instance in (upload, pickle.loads(pickle.dumps(upload)), copy.deepcopy(upload)):
            instance.save()
    with codec():
        Upload.objects.get().save()
    upload = Upload.objects.get()
    assert (upload.failure_message, upload.execution_logs) == (before.failure_message, before.execution_logs)


def test_saving_keeps_a_value_that_python_cannot_decode():
    stored = "1" * 5000
    Upload.objects.create()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE records_upload SET execution_logs = %s", [stored])
    upload = Upload.objects.get()
    assert isinstance(upload.execution_logs, Unreadable)
    upload.save()
    [(kept,)] = Upload.objects.values_list(Cast("execution_logs", TextField()))
    assert kept == stored


@pytest.mark.parametrize("keys", [(OLD_KEY,), ()], ids=["encoded", "without a codec"])
def test_columns_can_be_copied_and_updated_in_bulk(keys):
    with codec(*keys):
        upload = Upload.objects.create(failure_message=CANARY, execution_logs=[CANARY])
        Upload.objects.update(failure_message=F("failure_message"), execution_logs=F("execution_logs"))
        same = Subquery(Upload.objects.filter(pk=OuterRef("pk")).values("failure_message"))
        Upload.objects.update(failure_message=Case(When(pk=0, then="failure_message"), default=Coalesce(same, same)))
        upload.refresh_from_db()
        assert (upload.failure_message, upload.execution_logs) == (CANARY, [CANARY])
        upload.failure_message, upload.execution_logs = f"new {CANARY}", [f"new {CANARY}"]
        Upload.objects.bulk_update([upload], ["failure_message", "execution_logs"])
        upload.refresh_from_db()
    assert (upload.failure_message, upload.execution_logs) == (f"new {CANARY}", [f"new {CANARY}"])
    assert (CANARY not in raw_rows(Upload)) == bool(keys)


def test_the_database_computes_columns_only_without_a_codec():
    upload = Upload.objects.create(result="a")
    computed = [
        {"failure_message": F("result")},
        {"failure_message": Upper("failure_message")},
        {"execution_logs": Value([1], JSONField())},
    ]
    with codec():
        for values in computed:
            Upload.objects.update(**values)
    assert [*Upload.objects.values_list("failure_message", "execution_logs")] == [("A", [1])]
    for values in computed:
        with pytest.raises(FieldError, match=f"cannot compute '{min(values)}'"), transaction.atomic():
            Upload.objects.update(**values)
    upload.failure_message = F("result")
    with pytest.raises(FieldError, match="Set it to a value instead of an expression"):
        upload.save()


@every_model
@pytest.mark.parametrize(("key", "shown"), [(OLD_KEY, CANARY), (NEW_KEY, "cannot decode the stored value")])
def test_the_admin_shows_the_texts_or_the_reason(admin_client, model, key, shown):
    record = failed(model)
    name = f"admin:records_{model._meta.model_name}"
    with codec(key):
        listed = admin_client.get(reverse(f"{name}_changelist")).content.decode()
        page = admin_client.get(reverse(f"{name}_change", args=[record.pk])).content.decode()
    assert shown in listed
    assert page.count(shown) >= 2
    assert ENCODED not in listed + page
    assert (f"out {CANARY}" in page) == (key == OLD_KEY)


def test_a_retry_of_an_unreadable_record_needs_no_key():
    upload = failed(Upload)
    with codec(NEW_KEY):
        assert records.retry(Upload.objects.filter(pk=upload.pk)) == 1
        run_due_jobs()
        assert CANARY in Upload.objects.get().failure_message


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


def test_an_end_that_waits_for_a_lock_contains_no_payload(store):
    [kind] = records.operations.record_types_of(Upload)
    table, upload = kind.table("default"), Upload.objects.create(state="processing", lease_number=1)
    store.deferred.defer_records(table, [RecordEnd(upload.pk, 1, "failed", message=f"Error: {CANARY}")])
    assert CANARY not in repr(DeferredWrite.objects.values_list("outcome", flat=True))
    assert store.deferred.apply_records(table) == []
    assert Upload.objects.get().failure_message == f"Error: {CANARY}"
