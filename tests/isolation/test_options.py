"""Where ``isolation`` can be set, and which values are refused."""

import math
from io import StringIO

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command

from django_jobchains.conf import get_settings
from django_jobchains.exceptions import InvalidDeclaration, RegistryError
from django_jobchains.pools import ChildSession, Isolation, RemoteError, ReusablePool, presets
from django_jobchains.processors import Processors, Registry
from django_jobchains.telemetry.tracing import telemetry_request
from django_jobchains.worker import Worker
from django_jobchains.worker.isolated import child_attempt

pytestmark = pytest.mark.django_db

SMALL = Isolation("process", max_workers=1, memory_limit="1G")


def register(registry, name, *, part=None, **options):
    part = part or Processors()
    part.register(name, **options)(lambda job: None)
    registry.add(part)


def isolation_of(name, **options):
    return Worker(**options).options.policies[name].isolation


def test_the_processor_its_slice_the_worker_and_the_settings_decide_in_this_order(registry, settings):
    part = Processors(isolation="process")
    register(registry, "own", part=part, isolation=SMALL)
    register(registry, "of_slice", part=part)
    register(registry, "open")
    assert isolation_of("open") == Isolation("thread")
    assert isolation_of("own", isolation="transient") == SMALL
    assert isolation_of("of_slice", isolation="transient") == Isolation("process")
    assert isolation_of("open", isolation=presets.transient()) == Isolation("transient")
    settings.JOBCHAINS = {"ISOLATION": "process"}
    assert isolation_of("open") == Isolation("process")
    assert isolation_of("open", isolation="thread") == Isolation("thread")


def test_other_values_are_refused_where_they_are_set(registry, settings):
    with pytest.raises(InvalidDeclaration, match=r"'a'.*isolation="):
        register(registry, "a", isolation="child")
    with pytest.raises(RegistryError, match="isolation="):
        Processors(isolation="child")
    register(registry, "b")
    with pytest.raises(ImproperlyConfigured, match="isolation="):
        Worker(isolation="child")
    settings.JOBCHAINS = {"ISOLATION": "child"}
    with pytest.raises(ImproperlyConfigured, match=r"JOBCHAINS\['ISOLATION'\]"):
        get_settings()


def test_types_with_an_equal_isolation_share_their_children(registry):
    for name, isolation in {"a": SMALL, "b": Isolation("process", max_workers=1, memory_limit=1024**3)}.items():
        register(registry, name, isolation=isolation)
    register(registry, "c", isolation=Isolation("process", key="other"))
    register(registry, "d")
    worker = Worker(slots=3)
    lanes = [set(lane.leases) for lane in worker.components.lanes]
    assert sorted(map(sorted, lanes)) == [["a", "b"], ["c"], ["d"]]
    assert len(worker.components.child_slots) == 2


def test_there_are_no_more_children_than_slots(registry, monkeypatch):
    monkeypatch.setattr("django_jobchains.worker.isolated.isolation_pool.cpu_count", lambda: 2)
    levels = {"process": 2, "transient": 3}
    for level in levels:
        register(registry, level, isolation=level)
    register(registry, "many", isolation=Isolation("process", max_workers=50))
    pools = {isolation: slots.pool for isolation, slots in Worker(slots=3).components.child_slots.items()}
    assert {isolation.level: pool.max_workers for isolation, pool in pools.items() if not isolation.options} == levels
    assert [pool.max_workers for isolation, pool in pools.items() if isolation.options] == [3]


def test_types_of_another_registry_cannot_be_isolated():
    registry = Registry()
    register(registry, "a", isolation="process")
    with pytest.raises(ImproperlyConfigured, match="project's registry only"):
        Worker(registry=registry)


def test_a_strict_isolation_that_the_system_does_not_support_prevents_the_start(registry, monkeypatch):
    monkeypatch.setattr(
        "django_jobchains.children.pooled_child.start_problem", lambda: "child processes need a POSIX system"
    )
    register(registry, "a", isolation="process")
    Worker()
    register(registry, "b", isolation=Isolation("process", strict=True))
    with pytest.raises(ImproperlyConfigured, match=r"isolation='process' is strict: .*need a POSIX system"):
        Worker()


def test_a_backoff_that_children_cannot_import_is_refused(registry):
    register(registry, "a", isolation="process", backoff=lambda failures, error: 1.0)
    Worker()
    register(registry, "b", isolation="process")
    with pytest.raises(ImproperlyConfigured, match=r"the backoff of 'b'.*cannot import"):
        Worker(backoff=lambda failures, error: 1.0)
    Worker(backoff=math.ldexp)


def test_the_command_shows_the_isolation_and_its_source(registry):
    register(registry, "a", isolation=SMALL)
    register(registry, "b")
    written = StringIO()
    call_command("jobchains", "types", "a", "b", stdout=written)
    lines = [
        line.split(maxsplit=1) for line in written.getvalue().splitlines() if line.lstrip().startswith("isolation ")
    ]
    assert [" ".join(rest.split()) for _, rest in lines] == [
        f"process (max_workers=1, memory_limit={1024**3}) processor",
        "thread library",
    ]


HOSTILE = ("os.system", "os:system", "__import__", "builtins.eval", "django_jobchains.pools:send")


@pytest.mark.parametrize("target", [child_attempt.TARGET, child_attempt.RECORD_TARGET])
def test_a_child_process_finds_no_function_by_a_stored_type_name(target):
    request = {"jobs": [], "id": "1", "lease_number": 1, "using": "default", "reports_begin": False}
    with ReusablePool(strict=True) as pool, ChildSession(pool) as child:
        for name in HOSTILE:
            with pytest.raises(RemoteError, match="ProcessorNotFound"):
                child.run(target, {**request, "type_name": name, "telemetry": telemetry_request({})})
