"""The list and the page of records: columns, filters, hidden values, and the fields of the form."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import JSONField, Value
from django.test.utils import CaptureQueriesContext

from django_jobchains import records
from django_jobchains.admin import base, record_admin
from django_jobchains.admin.lists import filters
from django_jobchains.admin.record_admin import JobRecordAdmin
from django_jobchains.db.times import as_stored
from tests.admin.browsing import act, act_many, choose_action, messages_in, text_of, url, verb_url
from tests.admin.records.site import STATES, put, site, state_of
from tests.records.models import Export, Letter, Repository, Upload

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("record_site")]

SECRET = "password=hunter2"
ERROR = f"ValueError: no {SECRET}\nsecond line"
LOG = {
    "key": "convert",
    "command": ["convert", "--token=abcdefghijkl", "a.png"],
    "start_time": "2026-01-02T03:04:05+00:00",
    "exit_code": 3,
    "out": f"line one\n{SECRET}",
    "duration_ms": 1500,
}


def listed(client, model=Upload, query=""):
    """Return the list as HTML, and the keys of its rows."""
    page = text_of(client.get(url("changelist", model=model) + query))
    return page, set(re.findall(r'name="_selected_action" value="([^"]+)"', page))


def shown_to(client, record):
    """Return the HTML of the list and of the record's page."""
    return listed(client, type(record))[0] + text_of(client.get(url("change", record)))


# The list


@pytest.mark.parametrize("state", STATES)
def test_the_state_is_shown_and_filtered_and_pages_of_unfinished_records_refresh(superuser, state):
    record = put(state=state)
    put(state="queued" if state == "completed" else "completed")
    style = "other" if state == "uploading" else state
    assert f'jobchains-status-{style}">{state}</span>' in listed(superuser)[0]
    page = text_of(superuser.get(url("change", record)))
    assert ("refresh.js" in page) is (state in ("queued", "processing", "errored"))
    found = set() if state == "uploading" else {str(record.pk)}
    assert listed(superuser, query=f"?record_state={state}")[1] == found, "only states of records can be chosen"


def test_filters_show_counts_in_lists_that_nothing_else_narrows(superuser, monkeypatch):
    monkeypatch.setattr(filters, "MAX_COUNTED", 2)
    for state in ("queued", "failed", "failed", "failed", "completed"):
        put(state=state)
    page = listed(superuser)[0]
    assert all(shown in page for shown in ("queued (1)", "failed (2+)", "errored (0)"))
    assert "completed (" not in page
    assert "failed (" not in listed(superuser, query="?record_wait=due")[0]


@pytest.mark.parametrize("use_tz", [True, False])
def test_queued_records_are_filtered_by_whether_they_are_due(superuser, store, settings, use_tz):
    settings.TIME_ZONE, settings.USE_TZ = "Asia/Kathmandu", use_tz
    now, hour = as_stored(store.stats.time_ago(0), "default"), timedelta(hours=1)
    due = {str(put(state="queued", process_after=time).pk) for time in (None, now - hour)}
    later = {str(put(state="queued", process_after=now + hour).pk)}
    put(state="failed")
    assert listed(superuser, query="?record_wait=due")[1] == due
    assert listed(superuser, query="?record_wait=later")[1] == later


@pytest.mark.parametrize(
    "lookup",
    [
        "failure_message__startswith={}",
        "failure_message={}",
        "failure_message__regex=^({}|a)*$",
        "execution_logs__icontains={}",
        "execution_logs__0__key={}",
        "worker_hostname__iregex={}",
        "size__gt={}",
    ],
)
def test_only_declared_filters_change_the_list(staff, lookup):
    """Lookups would reveal hidden columns letter by letter, and a regular expression might block the process."""
    record, client = put(failure_message=ERROR, execution_logs=[LOG], worker_hostname="tea-1"), staff()
    for guess in ("ValueError", "convert", "5", "nothing"):
        assert listed(client, query=f"?{lookup.format(guess)}")[1] == {str(record.pk)}


def test_filters_and_actions_of_a_subclass_are_kept(superuser, monkeypatch):
    repository = Repository.objects.create(name="tea")
    record, _other = put(repository=repository, queued_at=datetime(2020, 2, 3, tzinfo=UTC)), put()
    assert all(f'value="{name}"' in listed(superuser)[0] for name in ("touch", "retry", "delete_selected"))
    monkeypatch.setattr(site.get_model_admin(Upload), "date_hierarchy", "queued_at")
    of_day = "queued_at__year=2020&queued_at__month=2&queued_at__day=3"
    for query in (f"repository__id__exact={repository.pk}", "queued_at__year=2020", of_day):
        assert listed(superuser, query=f"?{query}")[1] == {str(record.pk)}


@pytest.mark.parametrize("query", ["", "?q=Error", "?record_state=failed", "?o=1"])
def test_the_list_omits_rows_that_are_hidden_elsewhere(superuser, monkeypatch, query):
    monkeypatch.setattr(site.get_model_admin(Export), "search_fields", ("failure_message",))
    shown = put(Export, name="shown", failure_message="Error one")
    for name in ("hidden", "excluded"):
        put(Export, name=name, failure_message="Error two")
    reply = superuser.get(url("changelist", model=Export) + query)
    assert listed(superuser, Export, query)[1] == {str(shown.pk)}
    assert "Error two" not in text_of(reply)
    assert reply.context["cl"].result_count == 1, "the count would tell whether a search finds a hidden row"


def test_actions_and_other_pages_do_not_get_hidden_rows(superuser, monkeypatch, rf):
    exports = site.get_model_admin(Export)
    monkeypatch.setattr(exports, "search_fields", ("name",))
    shown, hidden, excluded = (put(Export, "queued", name=name) for name in ("shown", "hidden", "excluded"))
    choice = {"action": "delete_selected", "_selected_action": [shown.pk, hidden.pk], "post": "yes"}
    superuser.post(url("changelist", model=Export), choice)
    assert set(Export.objects.all()) == {hidden, excluded}
    request = rf.get("/")
    request.user = User(is_superuser=True, is_active=True)
    found, _ = exports.get_search_results(request, exports.get_queryset(request), "hidden")
    assert not found.exists()
    for record in (hidden, excluded):
        assert superuser.get(verb_url("cancel", record)).status_code == 404
        assert act(superuser, "cancel", record).status_code == 404
        reason = f"1 row skipped: no longer exists ({record.pk})."
        assert messages_in(act_many(superuser, "cancel", [record], Export))[-1] == reason
        assert state_of(record) == "queued"


def test_actions_accept_ids_that_pages_show_with_thousand_separators(superuser, settings):
    settings.USE_THOUSAND_SEPARATOR = True
    record = put(pk=1234567)
    page = text_of(choose_action(superuser, "retry", [record], Upload))
    sent = re.findall(r'name="_selected_action" value="([^"]+)"', page)
    act_many(superuser, "retry", sent, Upload)
    assert state_of(record) == "queued"


def test_a_list_with_hidden_rows_checks_a_limited_number(superuser, monkeypatch):
    monkeypatch.setattr(record_admin, "MAX_CHECKED_ROWS", 2)
    for name in ("a", "b", "c"):
        put(Export, name=name)
    page, keys = listed(superuser, Export)
    assert (len(keys), "Only the first 2 rows are listed." in page) == (2, True)
    Export.objects.filter(name="c").delete()
    assert "Only the first" not in listed(superuser, Export)[0]


def test_a_list_counts_and_shows_a_limited_number_of_rows(superuser, monkeypatch, django_assert_max_num_queries):
    for _ in range(30):
        put(failure_message=ERROR)
    # On PostgreSQL, the time limit of a read takes three more statements.
    with django_assert_max_num_queries(10 if connection.vendor == "sqlite" else 20) as context:
        assert "Only the first" not in listed(superuser)[0]
    counts = [query["sql"] for query in context.captured_queries if "COUNT(" in query["sql"]]
    assert counts
    limits = (f"LIMIT {base.MAX_ROWS + 1}", f"LIMIT {filters.MAX_COUNTED + 1}")
    assert all(any(limit in sql for limit in limits) for sql in counts), counts
    monkeypatch.setattr(base, "MAX_ROWS", 2)
    assert "Only the first 2 rows are listed." in listed(superuser)[0]


# The page, and what is hidden


def test_the_page_shows_timings_and_logs(superuser, store):
    now = store.stats.time_ago(0)
    times = {"queued_at": timedelta(hours=3), "started_at": timedelta(minutes=10), "finished_at": timedelta(minutes=8)}
    values = {"num_failures": 2, "num_resets": 1, "worker_hostname": "tea-1", "failure_message": ERROR}
    record = put(execution_logs=[LOG], **values, **{name: now - ago for name, ago in times.items()})
    page = text_of(superuser.get(url("change", record)))
    for shown in ("took 2 min", "3 h ago", "<dd>3</dd>", "tea-1", "convert", "exit code 3", "took 1.5 s", "line one"):
        assert shown in page


@pytest.mark.parametrize("model", [Upload, Letter])
def test_secrets_are_masked_everywhere(superuser, model):
    own = {"code": "a/b"} if model is Letter else {}
    record = put(model, "failed", failure_message=ERROR, execution_logs=[LOG], **own)
    assert "exit code 3" in shown_to(superuser, record)
    for page in (shown_to(superuser, record), text_of(superuser.get(verb_url("retry", record)))):
        assert "hunter2" not in page
        assert "abcdefghijkl" not in page


@pytest.mark.parametrize("permissions", [(), ("view_payload",)])
def test_messages_and_logs_require_the_permission_for_payloads(staff, permissions):
    page = shown_to(staff(*permissions), put(failure_message=ERROR, execution_logs=[LOG]))
    assert ("second line" in page) is bool(permissions)
    assert ("line one" in page) is bool(permissions)
    assert ("do not have permission to view payloads" in page) is not bool(permissions)
    assert "ValueError" in page, "everyone may see the type of the error"


@pytest.mark.parametrize(
    ("message", "is_shown"),
    [
        ("ValueError: no", True),
        ("Job.DoesNotExist: no", True),
        ("shop.errors.Declined: no", True),
        ("BobMiller: account blocked", False),
        ("hunter2XYZ", False),
        ("sk_live_4111: refused", False),
        ("bob.miller: refused", False),
    ],
)
def test_without_the_permission_only_a_type_of_exceptions_is_shown(staff, message, is_shown):
    page = shown_to(staff(), put(failure_message=message))
    assert (message.partition(":")[0] in page) is is_shown


@pytest.mark.parametrize(
    "logs", [None, "text", {"key": 1}, [1, None, {}], [{"start_time": "never", "duration_ms": "x"}]]
)
def test_invalid_logs_do_not_break_the_page(superuser, logs):
    record = put(failure_message="")
    Upload.objects.update(execution_logs=Value(logs, JSONField()))
    assert superuser.get(url("change", record)).status_code == 200


# The form


def test_the_form_does_not_have_the_columns_of_records(superuser):
    page = text_of(superuser.get(url("change", put())))
    assert 'name="size"' in page
    assert not re.search(r'name="(state|process_after_0|failure_message)"', page)
    page = text_of(superuser.get(url("change", put(Letter, "failed", code="a", failure_message=ERROR))))
    assert not re.search(r'name="(status|error|logs|host)"', page)
    assert 'name="process_after_0"' in text_of(superuser.get(url("add", model=Upload))), "it may be scheduled"


def test_saving_the_form_does_not_undo_changes_of_a_worker(superuser, monkeypatch):
    """The worker finishes the record after the form has read it, and its handler has written a column of the model."""
    record, uploads = put(state="processing", lease_number=3), type(site.get_model_admin(Upload))
    save = uploads.save_model

    def save_late(self, request, obj, form, change):
        Upload.objects.filter(pk=obj.pk).update(state="completed", lease_number=4, result="of the handler")
        save(self, request, obj, form, change)

    monkeypatch.setattr(uploads, "save_model", save_late)
    monkeypatch.setattr(uploads, "readonly_fields", ("result",))
    repository = Repository.objects.create(name="tea")
    answer = {"size": "12", "repository": repository.pk}
    assert superuser.post(url("change", record), answer).status_code == 302
    assert state_of(record) == "completed"
    assert (record.lease_number, record.size, record.repository) == (4, 12, repository)
    assert record.result == "of the handler"


def test_saving_the_form_writes_columns_that_a_subclass_sets(superuser, monkeypatch):
    record, uploads = put(), type(site.get_model_admin(Upload))
    save = uploads.save_model

    def save_with_result(self, request, obj, form, change):
        obj.result = "of the class"
        save(self, request, obj, form, change)

    monkeypatch.setattr(uploads, "save_model", save_with_result)
    monkeypatch.setattr(uploads, "fields", ("size",))
    assert superuser.post(url("change", record), {"size": "12"}).status_code == 302
    record.refresh_from_db()
    assert (record.size, record.result) == (12, "of the class")


def test_saving_the_list_writes_its_columns_and_those_that_a_subclass_sets(superuser, monkeypatch):
    record, repository, uploads = put(), Repository.objects.create(name="tea"), type(site.get_model_admin(Upload))
    save = uploads.save_model

    def save_late(self, request, obj, form, change):
        Upload.objects.filter(pk=obj.pk).update(result="of the handler")
        obj.repository = repository
        save(self, request, obj, form, change)

    monkeypatch.setattr(uploads, "save_model", save_late)
    monkeypatch.setattr(uploads, "list_display", ("__str__", "size"))
    monkeypatch.setattr(uploads, "list_editable", ("size",))
    row = {"form-0-id": record.pk, "form-0-size": "12"}
    answer = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "_save": "Save", **row}
    assert superuser.post(url("changelist", model=Upload), answer).status_code == 302
    record.refresh_from_db()
    assert (record.size, record.repository, record.result) == (12, repository, "of the handler")


def test_deferred_columns_are_neither_read_nor_written(superuser, monkeypatch):
    record, uploads = put(), type(site.get_model_admin(Upload))
    find = uploads.get_queryset
    monkeypatch.setattr(uploads, "get_queryset", lambda self, request: find(self, request).defer("result"))
    monkeypatch.setattr(uploads, "fields", ("size",))
    with CaptureQueriesContext(connection) as queries:
        assert superuser.get(url("change", record)).status_code == 200
        assert superuser.post(url("change", record), {"size": "12"}).status_code == 302
    assert not [query["sql"] for query in queries if '"result"' in query["sql"]]
    record.refresh_from_db()
    assert record.size == 12


def test_a_new_record_is_queued(superuser):
    answer = {"size": "12", "result": "x", "repository": Repository.objects.create(name="tea").pk}
    superuser.post(url("add", model=Upload), {**answer, "process_after_0": "", "process_after_1": ""})
    assert records.queryset(Upload).queued_count() == 1


def test_a_model_without_a_handler_is_a_system_check_error():
    class Unhandled(JobRecordAdmin, admin.ModelAdmin):
        pass

    assert [problem.id for problem in Unhandled(Repository, site).check()] == ["jobchains.E017"]
    assert "jobchains.E017" not in [problem.id for problem in site.get_model_admin(Upload).check()]
