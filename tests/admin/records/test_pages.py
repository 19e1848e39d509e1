"""The list and the page of records: columns, filters, hidden values, and the fields of the form."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import JSONField, Value

from django_jobchains import records
from django_jobchains.admin.records import record_admin
from django_jobchains.admin.records.record_admin import JobRecordAdmin
from tests.admin.actions.browsing import text_of
from tests.admin.records.browsing import STATES, put, state_of, url
from tests.admin.records.site import site
from tests.records.models import Export, Letter, Repository, Upload

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin.records.site")]

INLINE = re.compile(r"<style|style=|<script>|javascript:| on\w+=")
SECRET = "password=hunter2"
ERROR = f"ValueError: no {SECRET}\nsecond line"
LOG = {
    "key": "convert",
    "command": ["convert", "--token=abcdefghijkl", "a.png"],
    "start_time": "2026-01-02T03:04:05+00:00",
    "exit_code": 3,
    "out": f"line one\n{SECRET}\n<b>bold</b>",
    "duration_ms": 1500,
}


def rows_in(page: str) -> set[str]:
    return set(re.findall(r'name="_selected_action" value="([^"]+)"', page))


@pytest.mark.parametrize("state", STATES)
def test_the_list_shows_and_filters_the_state(superuser, state):
    record = put(state=state)
    put(state="queued" if state == "completed" else "completed")
    style = "other" if state == "uploading" else state
    assert f'jobchains-status-{style}">{state}</span>' in text_of(superuser.get(url("changelist")))
    reply = superuser.get(url("changelist") + f"?record_state={state}")
    if state == "uploading":
        assert reply.status_code == 302, "only states of records can be chosen"
    else:
        assert rows_in(text_of(reply)) == {str(record.pk)}


def test_queued_records_are_filtered_by_whether_they_are_due(superuser, store):
    now = store.stats.time_ago(0)
    due = {str(put(state="queued", process_after=time).pk) for time in (None, now - timedelta(hours=1))}
    later = {str(put(state="queued", process_after=now + timedelta(hours=1)).pk)}
    put(state="failed")
    assert rows_in(text_of(superuser.get(url("changelist") + "?record_wait=due"))) == due
    assert rows_in(text_of(superuser.get(url("changelist") + "?record_wait=later"))) == later


def test_the_columns_of_a_model_can_have_other_names(superuser):
    put(Letter, "failed", code="a/b", failure_message=ERROR, execution_logs=[LOG])
    put(Letter, "queued", code="c")
    assert rows_in(text_of(superuser.get(url("changelist", model=Letter) + "?record_state=failed"))) == {"a/b"}
    page = text_of(superuser.get(url("change", Letter.objects.get(code="a/b"))))
    assert 'jobchains-status-failed">failed<' in page
    assert "exit code 3" in page


def test_the_page_shows_timings_and_logs(superuser, store):
    now = store.stats.time_ago(0)
    record = put(
        state="failed",
        queued_at=now - timedelta(hours=3),
        started_at=now - timedelta(minutes=10),
        finished_at=now - timedelta(minutes=8),
        num_failures=2,
        num_resets=1,
        worker_hostname="tea-1",
        failure_message=ERROR,
        execution_logs=[LOG],
    )
    page = text_of(superuser.get(url("change", record)))
    for shown in ("took 2 min", "3 h ago", "<dd>3</dd>", "tea-1", "convert", "exit code 3", "took 1.5 s", "line one"):
        assert shown in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page


@pytest.mark.parametrize("model", [Upload, Letter])
def test_secrets_are_masked_everywhere(superuser, model):
    own = {"code": "a"} if model is Letter else {}
    record = put(model, "failed", failure_message=ERROR, execution_logs=[LOG], **own)
    for page in (url("changelist", model=model), url("change", record), url("record_retry", record)):
        shown = text_of(superuser.get(page))
        assert "hunter2" not in shown
        assert "abcdefghijkl" not in shown


def test_messages_and_logs_require_the_permission_for_payloads(member):
    record = put(failure_message=ERROR, execution_logs=[LOG])
    for permissions, is_shown in ((["view_upload"], False), (["view_upload", "view_payload"], True)):
        client = member(*permissions)
        lists_and_page = text_of(client.get(url("changelist"))) + text_of(client.get(url("change", record)))
        assert ("second line" in lists_and_page) is is_shown
        assert ("line one" in lists_and_page) is is_shown
        assert ("do not have permission to view payloads" in lists_and_page) is not is_shown
        assert "ValueError" in lists_and_page, "everyone may see the type of the error"


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
def test_only_declared_filters_change_the_list(member, lookup):
    """Lookups would reveal hidden columns letter by letter, and a regular expression might block the process."""
    record, client = put(failure_message=ERROR, execution_logs=[LOG], worker_hostname="tea-1"), member("view_upload")
    for guess in ("ValueError", "convert", "5", "nothing"):
        reply = client.get(f"{url('changelist')}?{lookup.format(guess)}")
        assert rows_in(text_of(reply)) == {str(record.pk)}


def test_filters_of_a_subclass_are_kept(superuser, monkeypatch):
    repository = Repository.objects.create(name="tea")
    record, _other = put(repository=repository), put()
    assert rows_in(text_of(superuser.get(f"{url('changelist')}?repository__id__exact={repository.pk}"))) == {
        str(record.pk)
    }
    monkeypatch.setattr(site.get_model_admin(Upload), "date_hierarchy", "queued_at")
    Upload.objects.filter(pk=record.pk).update(queued_at=datetime(2020, 2, 3, tzinfo=UTC))
    for day in ("queued_at__year=2020", "queued_at__year=2020&queued_at__month=2&queued_at__day=3"):
        assert rows_in(text_of(superuser.get(f"{url('changelist')}?{day}"))) == {str(record.pk)}


@pytest.mark.parametrize("query", ["", "?q=Error", "?record_state=failed", "?o=1"])
def test_the_list_omits_rows_that_are_hidden_elsewhere(superuser, monkeypatch, query):
    model_admin = site.get_model_admin(Export)
    monkeypatch.setattr(model_admin, "search_fields", ("failure_message",))
    shown = put(Export, name="shown", failure_message="Error one")
    for name in ("hidden", "excluded"):
        put(Export, name=name, failure_message="Error two")
    reply = superuser.get(url("changelist", model=Export) + query)
    assert rows_in(text_of(reply)) == {str(shown.pk)}
    assert "Error two" not in text_of(reply)
    assert reply.context["cl"].result_count == 1, "the count would tell whether a search finds a hidden row"


def test_actions_of_the_list_and_other_pages_do_not_get_hidden_rows(superuser, monkeypatch, rf):
    model_admin: Any = site.get_model_admin(Export)
    monkeypatch.setattr(model_admin, "search_fields", ("name",))
    shown, hidden = (put(Export, name=name) for name in ("shown", "hidden"))
    choice = {"action": "delete_selected", "_selected_action": [shown.pk, hidden.pk], "post": "yes"}
    superuser.post(url("changelist", model=Export), choice)
    assert list(Export.objects.all()) == [hidden]
    request = rf.get("/")
    request.user = User(is_superuser=True, is_active=True)
    found, _ = model_admin.get_search_results(request, model_admin.get_queryset(request), "hidden")
    assert not found.exists()


def test_a_list_with_hidden_rows_checks_a_limited_number(superuser, monkeypatch):
    monkeypatch.setattr(record_admin, "MAX_CHECKED_ROWS", 2)
    for name in ("a", "b", "c"):
        put(Export, name=name)
    page = text_of(superuser.get(url("changelist", model=Export)))
    assert len(rows_in(page)) == 2
    assert "Only the first 2 rows are listed." in page
    Export.objects.filter(name="c").delete()
    assert "Only the first" not in text_of(superuser.get(url("changelist", model=Export)))


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("ValueError: no", "ValueError"),
        ("Job.DoesNotExist: no", "Job.DoesNotExist"),
        ("shop.errors.Declined: no", "shop.errors.Declined"),
        ("BobMiller: account blocked", ""),
        ("hunter2XYZ", ""),
        ("sk_live_4111: refused", ""),
        ("bob.miller: refused", ""),
    ],
)
def test_without_the_permission_only_a_type_of_exceptions_is_shown(member, message, shown):
    record, client = put(failure_message=message), member("view_upload")
    page = text_of(client.get(url("changelist"))) + text_of(client.get(url("change", record)))
    assert (message.partition(":")[0] in page) is bool(shown)


@pytest.mark.parametrize(
    "logs", [None, "text", {"key": 1}, [1, None, {}], [{"start_time": "never", "duration_ms": "x"}]]
)
def test_invalid_logs_do_not_break_the_page(superuser, logs):
    record = put(state="failed", failure_message="")
    Upload.objects.update(execution_logs=Value(logs, JSONField()))
    assert superuser.get(url("change", record)).status_code == 200


def test_the_pages_have_no_inline_scripts_or_styles(superuser):
    record = put(state="processing", failure_message=ERROR, execution_logs=[LOG])
    for page in (url("changelist"), url("change", record), url("record_cancel", record)):
        assert not INLINE.search(text_of(superuser.get(page))), page


@pytest.mark.parametrize("state", STATES)
def test_the_page_of_an_unfinished_record_is_refreshed(superuser, state):
    page = text_of(superuser.get(url("change", put(state=state))))
    assert ("refresh.js" in page) is (state in ("queued", "processing", "errored"))


def test_the_form_does_not_have_the_columns_of_records(superuser):
    page = text_of(superuser.get(url("change", put())))
    assert 'name="size"' in page
    assert not re.search(r'name="(state|process_after_0|failure_message)"', page)
    page = text_of(superuser.get(url("change", put(Letter, "failed", code="a", failure_message=ERROR))))
    assert not re.search(r'name="(status|error|logs)"', page)
    assert 'name="host"' not in page
    assert 'name="process_after_0"' in text_of(superuser.get(url("add"))), "a new record may be scheduled"


def test_saving_the_form_does_not_undo_changes_of_a_worker(superuser, monkeypatch):
    """The worker finishes the record after the form has read it."""
    record = put(state="processing", lease_number=3)
    model_admin = site.get_model_admin(Upload)
    save = type(model_admin).save_model

    def save_late(self: Any, request: Any, obj: Any, form: Any, change: bool) -> None:
        Upload.objects.filter(pk=obj.pk).update(state="completed", lease_number=4)
        save(self, request, obj, form, change)

    monkeypatch.setattr(type(model_admin), "save_model", save_late)
    repository = Repository.objects.create(name="tea")
    answer = {"size": "12", "result": "x", "repository": repository.pk}
    assert superuser.post(url("change", record), answer).status_code == 302
    assert state_of(record) == "completed"
    assert (record.lease_number, record.size, record.repository) == (4, 12, repository)


def test_a_new_record_is_queued(superuser):
    answer = {"size": "12", "result": "x", "repository": Repository.objects.create(name="tea").pk}
    superuser.post(url("add"), {**answer, "process_after_0": "", "process_after_1": ""})
    assert records.queryset(Upload).queued_count() == 1


def test_a_list_counts_and_shows_a_limited_number_of_rows(superuser, monkeypatch):
    for _ in range(3):
        put()
    assert "Only the first" not in text_of(superuser.get(url("changelist")))
    monkeypatch.setattr(record_admin, "MAX_ROWS", 2)
    assert "Only the first 2 rows are listed." in text_of(superuser.get(url("changelist")))


def test_a_list_does_not_count_the_whole_table(superuser, django_assert_max_num_queries):
    put()
    with django_assert_max_num_queries(10) as context:
        superuser.get(url("changelist"))
    counts = [query["sql"] for query in context.captured_queries if "COUNT(" in query["sql"]]
    assert counts
    assert all(f"LIMIT {record_admin.MAX_ROWS + 1}" in sql for sql in counts), counts


def test_the_number_of_queries_does_not_depend_on_the_number_of_rows(superuser, django_assert_max_num_queries):
    for _ in range(30):
        put(failure_message=ERROR)
    with django_assert_max_num_queries(10):
        superuser.get(url("changelist"))


def test_a_model_without_a_handler_is_a_system_check_error(processors):
    class Unhandled(JobRecordAdmin, admin.ModelAdmin):
        pass

    model_admin: Any = Unhandled(Repository, site)
    assert [problem.id for problem in model_admin.check()] == ["jobchains.E017"]
    assert not [problem for problem in site.get_model_admin(Upload).check() if problem.id == "jobchains.E017"]
