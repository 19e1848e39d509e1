"""The functions of ``django_jobchains.limits``."""

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

import django_jobchains
from django_jobchains import chains, limits
from django_jobchains.declare import registry as registries
from django_jobchains.declare.limits import TypeLimits, limited_types
from django_jobchains.limits import KeyFacts, LimitNotFound
from django_jobchains.models import Job, LimitOverride
from django_jobchains.notifications import EVERY, Hint, get_notifier
from django_jobchains.processors import Concurrency, Rate
from django_jobchains.store.limits import StartRate
from django_jobchains.store.queues import Override
from django_jobchains.telemetry.events import LimitChanged
from django_jobchains.testing import clock, run_due_jobs
from tests.records.models import Upload

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _without_tasks(monkeypatch):
    monkeypatch.setattr(registries, "load_task", None)


@pytest.fixture
def register(processors):
    """Return a function that registers a type, whose inputs are keys."""

    def register(name="limits.sync", limit=2, *, key=None, group=None, **options):
        concurrency = Concurrency(limit, key=key, group=group)
        return processors.register(name, concurrency=concurrency, **options)(lambda job: None)

    return register


def itself(value):
    return value


def overrides(store):
    return store.queues.rules().overrides


def test_the_module_is_exported():
    assert django_jobchains.limits is limits
    assert "limits" in django_jobchains.__all__


def test_a_limit_is_overridden_and_reset(register, store):
    register()
    limits.set("limits.sync", concurrency=5)
    assert overrides(store) == {"limits.sync": Override(5)}
    limits.set("limits.sync", concurrency=0, using="default")
    assert overrides(store) == {"limits.sync": Override(0)}
    limits.reset("limits.sync")
    limits.reset("limits.sync")
    assert overrides(store) == {}


def test_a_group_is_overridden_by_its_name(register, store):
    register("limits.one", group="gateway")
    register("limits.two", group="gateway")
    limits.set("gateway", concurrency=1)
    assert overrides(store) == {"gateway": Override(1)}
    with pytest.raises(LimitNotFound, match=r"^No type or group 'limits\.one' declares a limit\. Declared: gateway\.$"):
        limits.set("limits.one", concurrency=1)


def test_a_rate_is_overridden_beside_a_concurrency(register, store):
    register("limits.calls", rate=Rate(100, 60))
    limits.set("limits.calls", rate=5)
    assert overrides(store) == {"limits.calls": Override(None, 5)}
    limits.set("limits.calls", concurrency=1)
    assert overrides(store) == {"limits.calls": Override(1, 5)}
    [limit] = limits.list()
    assert (limit.declared_rate, limit.rate, limit.rate_seconds) == (100, 5, 60.0)
    assert (limit.declared_concurrency, limit.concurrency) == (2, 1)


def test_overrides_replace_numbers_only():
    declared = TypeLimits(Concurrency(2, group="gateway"), Rate(60, 60, burst=3), None)
    assert (declared.slot_limit("a"), declared.start_rate("a")) == (2, StartRate(1_000_000, 3))
    both = {"gateway": Override(5), "a": Override(None, 30)}
    assert (declared.slot_limit("a", both), declared.start_rate("a", both)) == (5, StartRate(2_000_000, 3))
    assert declared.slot_limit("a", {"a": Override(None, 0)}) == 0  # no starts
    assert declared.slot_limit("a", {"gateway": Override(0)}) == 0
    assert TypeLimits(None, None, "key").slot_limit("a", both) is None


def test_a_claim_knows_which_types_are_counted_by_one_key():
    found = {
        "own": TypeLimits(Concurrency(2), None, "tenant"),
        "grouped": TypeLimits(Concurrency(2, group="gateway"), None, None),
        "keyed": TypeLimits(Concurrency(2, key="tenant"), None, None),
        "rated": TypeLimits(None, Rate(60, 60), None),
    }
    assert limited_types(dict.fromkeys(found, 60.0), found).shared_keys == {"own": "own", "grouped": "gateway"}


def test_limits_of_records_are_overridden_and_listed(processors, store):
    processors.records(Upload, concurrency=Concurrency(3))(lambda record, run: None)
    Upload.objects.bulk_create([Upload(state="processing"), Upload(), Upload()])
    limits.set("records.upload", concurrency=1)
    limits.set(queue="default", concurrency=9)
    uploads, queue = limits.list()
    assert (uploads.kind, uploads.name, uploads.types, uploads.is_declared) == ("records", "records.upload", (), True)
    assert (uploads.declared_concurrency, uploads.concurrency, uploads.running, uploads.waiting) == (3, 1, 1, 2)
    assert (queue.kind, queue.running) == ("queue", 1)
    Upload.objects.filter(state="processing").update(state="queued")
    with clock():
        limits.set("records.upload", concurrency=0)
        assert run_due_jobs() == []
        limits.reset("records.upload")
        assert len(run_due_jobs()) == 3


def test_jobs_obey_overrides_in_tests(register):
    sync = register()
    sync.enqueue()
    limits.set("limits.sync", concurrency=0)
    assert run_due_jobs() == []
    limits.set("limits.sync", concurrency=1)
    assert len(run_due_jobs()) == 1


def test_a_queue_is_limited_and_reset(store):
    limits.set(queue="mail", concurrency=3)
    assert [(rule.name, rule.slot_limit) for rule in store.queues.rules().queues] == [("mail", 3)]
    limits.reset(queue="mail")
    assert store.queues.rules().queues == ()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: limits.set("limits.snyc", concurrency=1), r"'limits\.snyc' declares a limit\. Did you mean 'limits\."),
        (lambda: limits.reset("limits.snyc"), r"'limits\.snyc' declares a limit\. Did you mean 'limits\.sync'"),
        (lambda: limits.set("limits.fair", concurrency=1), r"No type or group 'limits\.fair' declares a limit"),
        (
            lambda: limits.set("limits.sync", concurrency=-1),
            r"concurrency=-1 is not a whole number from 0 to 2147483647",
        ),
        (lambda: limits.set("limits.sync", concurrency=1.5), r"concurrency=1\.5 is not a whole number from 0"),
        (lambda: limits.set("limits.sync", concurrency=True), r"concurrency=True is not a whole number from 0"),
        (lambda: limits.set("limits.sync", rate=-1), r"rate=-1 is not a whole number from 0 to 2147483647"),
        (lambda: limits.set("limits.sync", rate=1), r"rate=1: 'limits\.sync' does not declare rate="),
        (
            lambda: limits.set("limits.calls", concurrency=1),
            r"concurrency=1: 'limits\.calls' does not declare concurrency=",
        ),
        (lambda: limits.set("limits.sync"), r"Pass concurrency= or rate="),
        (lambda: limits.set(queue="mail", rate=1), r"A queue has no rate: pass concurrency="),
        (lambda: limits.set(queue="", concurrency=1), r"queue='' is not a name"),
        (lambda: limits.set(5, concurrency=1), r"name=5 is not a name"),
        (lambda: limits.set(concurrency=1), r"Pass the name of a type or a group, or queue="),
        (lambda: limits.set("limits.sync", queue="mail", concurrency=1), r"Pass the name of a type or a group, or"),
        (lambda: limits.reset(), r"Pass the name of a type or a group, or queue="),
    ],
)
def test_invalid_changes_are_refused(register, processors, store, call, message):
    register()
    processors.register("limits.fair", fair=itself)(lambda job: None)
    processors.register("limits.calls", rate=Rate(5, 60))(lambda job: None)
    before = store.queues.rules()
    with pytest.raises((LimitNotFound, TypeError, ValueError), match=message):
        call()
    assert store.queues.rules() == before


def test_changes_are_rolled_back_with_the_transaction(register, store):
    register()
    with transaction.atomic():
        limits.set("limits.sync", concurrency=1)
        transaction.set_rollback(True)
    assert overrides(store) == {}


@pytest.mark.django_db(transaction=True)
def test_workers_are_notified_and_changes_reported_after_the_commit(register, events, monkeypatch):
    hints = []
    monkeypatch.setattr(get_notifier("default"), "publish", hints.extend)
    register()
    with transaction.atomic():
        limits.set("limits.sync", concurrency=1)
        limits.set(queue="mail", concurrency=0)
        limits.reset("limits.sync")
        assert hints == events.of(LimitChanged) == []
    assert hints == [Hint("job_scheduled", EVERY)] * 3
    changed = events.of(LimitChanged)
    assert [(event.kind, event.name, event.concurrency) for event in changed] == [
        ("limit", "limits.sync", 1),
        ("queue", "mail", 0),
        ("limit", "limits.sync", None),
    ]


@pytest.mark.django_db(transaction=True)
def test_every_function_has_an_async_variant(register):
    register()

    async def run():
        await limits.aset("limits.sync", concurrency=7)
        found = await limits.alist()
        await limits.areset("limits.sync")
        return found

    [limit] = async_to_sync(run)()
    assert (limit.declared_concurrency, limit.concurrency, limit.is_overridden) == (2, 7, True)
    assert not LimitOverride.objects.exists()


def test_nothing_is_counted_without_limits(django_assert_num_queries):
    with django_assert_num_queries(1):
        assert limits.list() == []


def test_limits_are_listed_with_what_runs_and_waits(register, store, django_assert_num_queries):
    """In a constant number of statements."""
    sync = register(key=itself)
    one = register("limits.one", 3, group="gateway")
    two = register("limits.two", 3, group="gateway", queue="mail")
    chains.enqueue_many(
        [*[sync.item(key) for key in "aaaabbc"], *[one.item() for _ in range(4)], two.item(), two.item()]
    )
    running = [
        *Job.objects.filter(concurrency_key="limits.sync␟a")[:2],
        *Job.objects.filter(concurrency_key="limits.sync␟b")[:1],
    ]
    running += Job.objects.filter(type_name="limits.one")[:2]
    Job.objects.filter(pk__in=[job.pk for job in running]).update(status="running")
    limits.set("gateway", concurrency=2)
    limits.set(queue="mail", concurrency=4)
    with django_assert_num_queries(4):
        gateway, of_sync, mail = limits.list()
    assert (gateway.kind, gateway.name, gateway.types) == ("group", "gateway", ("limits.one", "limits.two"))
    assert (gateway.declared_concurrency, gateway.concurrency, gateway.is_overridden) == (3, 2, True)
    assert (gateway.running, gateway.waiting, gateway.has_keys, gateway.keys) == (2, 4, False, ())
    assert (of_sync.kind, of_sync.concurrency, of_sync.is_overridden) == ("type", 2, False)
    assert (of_sync.running, of_sync.waiting, of_sync.has_keys) == (3, 4, True)
    assert of_sync.keys == (KeyFacts("a", 2, 2), KeyFacts("b", 1, 1))
    assert (mail.kind, mail.name, mail.concurrency, mail.running, mail.waiting) == ("queue", "mail", 4, 0, 2)
    assert mail.is_declared


def test_keys_of_rates_are_listed_until_they_may_start(processors, store):
    """Also without running jobs; those that wait longest first."""
    send = processors.register("limits.send", rate=Rate(1, per=100, key=itself))(lambda job: None)
    with clock() as time:
        chains.enqueue_many([send.item(key) for key in "abb"])
        run_due_jobs()
        time.advance(40)
        chains.enqueue_many([send.item("c"), send.item("c")])
        run_due_jobs()
        [limit] = limits.list()
        assert [(each.key, each.running, each.waiting) for each in limit.keys] == [
            ("c", 0, 1),
            ("b", 0, 1),
            ("a", 0, 0),
        ]
        assert [round(each.next_start_seconds, -1) for each in limit.keys] == [100, 60, 60]
        limits.set("limits.send", rate=2)
        assert [round(each.next_start_seconds, -1) for each in limits.list()[0].keys] == [50, 10, 10]
        time.advance(60)
        assert limits.list()[0].keys == ()


def test_keys_of_records_are_listed(processors):
    processors.records(Upload, concurrency=Concurrency(2, key="size"), rate=Rate(1, per=100, key="size"))(
        lambda record, run: None
    )
    Upload.objects.bulk_create(
        [Upload(size=7, state="processing"), Upload(size=7), *[Upload(size=8) for _ in range(3)]]
    )
    with clock():
        assert len(run_due_jobs()) == 2
        [limit] = limits.list()
    assert (limit.kind, limit.running, limit.waiting, limit.has_keys) == ("records", 1, 2, True)
    assert [(each.key, each.running, each.waiting) for each in limit.keys] == [("7", 1, 0), ("8", 0, 2)]
    assert all(each.next_start_seconds for each in limit.keys)


def test_types_and_records_of_a_group_are_listed_together(processors):
    rate = Rate(5, per=100, group="gateway")
    processors.register("limits.sync", rate=rate)(lambda job: None).enqueue()
    processors.records(Upload, rate=rate)(lambda record, run: None)
    Upload.objects.create()
    [limit] = limits.list()
    assert (limit.kind, limit.types, limit.record_types) == ("group", ("limits.sync",), ("records.upload",))
    assert (limit.waiting, limit.declared_rate) == (2, 5)


def test_an_override_of_a_limit_that_no_code_declares_is_harmless_and_shown(register, store, processors):
    """As during a deployment, or after its type was removed."""
    register()
    store.queues.override("limits.old", Override(0))
    old, sync = limits.list()
    assert (old.name, old.is_declared, old.is_overridden, old.concurrency) == ("limits.old", False, True, None)
    assert (sync.is_declared, sync.concurrency) == (True, 2)
    limits.reset("limits.old")
    assert [limit.name for limit in limits.list()] == ["limits.sync"]


@pytest.mark.parametrize("part", ["concurrency", "rate"])
def test_an_override_of_a_number_that_the_code_does_not_declare_has_no_effect(processors, store, part):
    declared = {"concurrency": Concurrency(2), "rate": Rate(100, 60)}
    del declared[part]
    processors.register("limits.sync", **declared)(lambda job: None)
    store.queues.override("limits.sync", Override(1, 1))
    [limit] = limits.list()
    assert limit.is_overridden
    assert {"concurrency": limit.concurrency, "rate": limit.rate} == {"concurrency": 1, "rate": 1, part: None}
