"""No page contains what a strict policy would block, also if every text in the database looks like markup."""

import re
from collections import Counter
from pathlib import Path

import pytest

import django_jobchains
from django_jobchains import queues, schedules
from django_jobchains.admin.base import TimeLimitExceeded
from django_jobchains.admin.lists import changelists
from django_jobchains.models import Job, Schedule
from django_jobchains.processors import JobType, get_registry
from tests.admin import rows
from tests.admin.browsing import (
    PERMISSIONS,
    Page,
    act,
    act_many,
    choose_action,
    fragment,
    index,
    text_of,
    url,
    verb_url,
)
from tests.admin.pages.test_secrecy import fill
from tests.admin.records.site import put
from tests.admin.visibility.test_pages import PAGES
from tests.admin.visibility.world import make_world
from tests.records.models import Upload
from tests.support.hostile_texts import problems_of
from tests.support.jobs import create, database_now

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("record_site")]

#: It adds an element, leaves an attribute in each kind of quotes, is an address, and is escaped twice if at all.
ONE_OF_EACH = ('"><script>alert(1)</script>', "'/onmouseover='alert(1)", "javascript:alert(1)", "&lt;b&gt;")


def give_up(*args):
    raise TimeLimitExceeded


def test_nothing_on_any_page_is_blocked(superuser, record_workers, monkeypatch):
    world, record = make_world(), put(state="processing", failure_message="E: x", execution_logs=[{"key": "read"}])
    queues.pause("mail")
    queues.set_limit("mail", 2)
    kind = JobType("shop.timed")
    monkeypatch.setitem(get_registry().declared, "shop.timed", kind)
    schedule = schedules.create("nightly", kind, every=60)
    schedules.run_now("nightly")
    others = [url("enqueue"), url("changelist") + "?q=nothing", "/admin/", url("changelist", model=Upload)]
    others += [url(page, schedule, "schedule") for page in ("change", "edit", "pause", "history")]
    others += [url("changelist", model="schedule"), f"{url('add', model='schedule')}?type=shop.timed"]
    limits = url("changelist", model="limitoverride")
    others += [limits, f"{limits}limit/?kind=queue&name=mail"]
    addresses = [page(world) for page in PAGES.values()] + [url("change", record), verb_url("cancel", record), *others]
    pages = [superuser.get(address, follow=True) for address in addresses]
    pages += [choose_action(superuser, verb, [world.plain, world.stepped[0]]) for verb in ("delete", "complete")]
    monkeypatch.setattr(changelists.KeysetChangeList, "get_results", give_up)
    pages.append(superuser.get(url("changelist")))
    assert {reply.status_code for reply in pages} == {200, 503}
    assert [problem for reply in pages for problem in problems_of(text_of(reply))] == []


def test_ids_are_unique_and_everything_with_the_focus_has_a_name(superuser, monkeypatch):
    kind = JobType("shop.timed", input=dict[str, int], output=dict[str, int])
    monkeypatch.setitem(get_registry().declared, "shop.timed", kind)
    chain = kind.enqueue({"number": 1})
    schedule = schedules.create("nightly", kind, every=60, input={})
    complete, edit = url("complete", chain), url("edit", schedule, "schedule")
    addresses = [complete, f"{complete}?type=shop.timed", url("cancel", chain), f"{url('enqueue')}?type=shop.timed"]
    for address in [*addresses, url("change", chain), edit]:
        elements = Page(superuser.get(address)).root.all()
        ids = Counter(element.attributes["id"] for element in elements if "id" in element.attributes)
        assert [name for name, number in ids.items() if number > 1] == [], address
        focused = [element.attributes for element in elements if element.attributes.get("tabindex") == "0"]
        assert focused
        assert all(element.get("role") == "region" and element.get("aria-label") for element in focused), address


@pytest.mark.parametrize("vector", ONE_OF_EACH)
def test_texts_of_rows_and_requests_never_become_markup(superuser, record_workers, store, beat, monkeypatch, vector):
    monkeypatch.setattr(get_registry(), "declared", {name: JobType(name) for name in (vector, "shop.ship")})
    names = dict.fromkeys(("queue", "deduplication_key", "leased_by", "completed_by"), vector)
    job = rows.chain(2, "running", vector, **names)[-1]
    fill(job, vector)
    rows.attempt(job, 2, worker=vector).save()
    rows.waits(job, rows.chain(1, type_name=vector))
    rows.waits(rows.chain(1, "blocked", vector)[-1], [Job.objects.get(pk=job.chain_id)])
    beat(vector, host=vector, version=vector[:50], queues=(vector,), type_names=("none",), stuck=1)
    create(store, 2, vector, queue=vector)
    queues.pause(vector)
    schedule = schedules.create(vector, vector, every=60, input={vector: vector}, queue=vector)
    schedules.run_now(vector)
    now = database_now()
    Schedule.objects.update(last_error=f"{vector}: {vector}\n{vector}", last_error_at=now, next_tick_at=now)
    Job.objects.filter(pk=job.pk).update(schedule_name=vector, scheduled_for=now)
    log = {"key": vector, "command": [vector], "out": vector, "exit_code": vector}
    record = put(failure_message=f"{vector}: {vector}", execution_logs=[log], worker_hostname=vector)
    chain, typed = Job(pk=job.chain_id), dict.fromkeys(("payload", "queue", "priority", "deduplication_key"), vector)
    lists = [f"{url('changelist', model=model)}?type={vector}&q={vector}" for model in ("chain", "job")]
    pages = [
        *(superuser.get(address) for address in (*lists, index(), fragment(), url("changelist", model=Upload))),
        *(
            superuser.get(url("change", row, model))
            for row, model in ((chain, "chain"), (job, "job"), (record, Upload))
        ),
        superuser.get(url("changelist", model="schedule"), {"q": vector}),
        *(superuser.get(url(page, schedule, "schedule")) for page in ("change", "edit", "pause", "delete")),
        superuser.post(
            url("edit", schedule, "schedule"), dict.fromkeys(("cron", "timezone", "queue", "payload"), vector)
        ),
        *(superuser.get(verb_url(verb, chain), {"type": vector, "next": vector}) for verb in PERMISSIONS),
        superuser.get(url("enqueue"), {"type": vector}),
        superuser.post(url("enqueue") + "?type=shop.ship", typed),
        act(superuser, "complete", job, "job", payload=vector),
        choose_action(superuser, "cancel", [chain]),
    ]
    act_many(superuser, "cancel", [chain])
    pages += [superuser.get(url("changelist")), superuser.get(url("history", chain))]
    for reply in pages:
        assert problems_of(text_of(reply)) == [], reply.request["PATH_INFO"]
        assert "<" not in vector or vector not in text_of(reply), reply.request["PATH_INFO"]


def test_the_admin_does_not_use_mark_safe():
    folder = Path(django_jobchains.__file__).parent
    for path in [*folder.glob("admin/**/*.py"), *folder.glob("templatetags/*.py"), *folder.glob("templates/**/*.html")]:
        assert not re.search(r"mark_safe|\|\s*safe\b|autoescape off|safeseq", path.read_text()), path
