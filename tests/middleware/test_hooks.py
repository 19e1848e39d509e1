"""The hooks around a handler and its phases: their order, their thread, and what their errors do."""

import threading
from contextlib import contextmanager

import pytest
from django.db import connection
from django.db.models import F

from django_jobchains.exceptions import FailJob, RegistryError
from django_jobchains.middleware import Middleware
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Processors, RescheduleJob
from django_jobchains.testing import run_due_jobs
from tests.middleware.recording import AllHooks, Failing, Recording, Swallowing, processors_with
from tests.shop.models import Effect
from tests.support.attempts import committed, on_own_connection
from tests.support.scenario import JOBS, RECORDS, complete, effect, effects, kinds, outside, prepare, write

pytestmark = committed

PHASES = ("handler", "prepare", "complete")
every_kind = kinds(*JOBS, *RECORDS)


def every_kind_and(*phases):
    """Parametrize the kind and the phase. A record has no ``prepare``."""
    rows = [(kind, phase) for kind in (*JOBS, *RECORDS) for phase in phases if phase != "prepare" or kind in JOBS]
    return pytest.mark.parametrize(("scenario", "phase"), rows, indirect=["scenario"])


def notes(name, *steps):
    """Return what ``Recording`` records around these steps."""
    inside = " in a transaction" if name != "handler" else ""
    opened = [f"> {each} {name}{inside}" for each in ("outer", "inner")]
    return [*opened, *steps, *(f"< {each} {name}" for each in ("inner", "outer"))]


@every_kind
def test_first_middleware_is_the_outermost_in_every_phase(scenario):
    """They run once for a batch, on the thread of their phase. A record has no ``prepare``."""
    seen, threads = [], {}
    is_record = scenario.kind in RECORDS

    class Threads(AllHooks):
        @contextmanager
        def around(self, phase, job):
            threads[phase] = threading.get_ident(), job.signal.is_row_locked
            yield

    def handler(jobs):
        threads["itself"] = threading.get_ident(), jobs[0].signal.is_row_locked
        seen.append("handler")
        if not is_record:
            yield prepare(lambda: seen.append("prepare"))
        yield complete(lambda: seen.append("complete"))
        seen.append("after")

    scenario = scenario.with_middleware(Recording("outer", seen), Threads(), Recording("inner", seen))
    scenario.enqueue(handler)
    scenario.run()
    assert scenario.states() == {"completed"}
    prepared = [] if is_record else notes("prepare", "prepare")
    assert seen == notes("handler", "handler", *prepared, *notes("complete", "complete"), "after")
    assert threads["handler"] == threads["itself"]
    assert (threads["complete"][0] == threads["handler"][0]) == (not scenario.kind.startswith("async"))
    locked = {phase: is_locked for phase, (_, is_locked) in threads.items()}
    if scenario.kind != "batch":  # each of its jobs has a signal
        assert (locked.pop("prepare", True), locked) == (True, {"itself": False, "handler": False, "complete": True})


def test_atomic_handler_runs_inside_the_hooks_of_handler_and_prepare(work):
    seen = []
    processors = processors_with(Recording("outer", seen), Recording("inner", seen))

    @processors.register("atomic", mode="atomic")
    def atomic(job):
        seen.append("handler")
        with job.complete():
            seen.append("complete")

    chain = atomic.enqueue()
    work(processors)
    assert chain.refresh().status == "completed"
    assert seen == notes("handler", *notes("prepare", "handler", *notes("complete", "complete")))


@pytest.mark.postgresql
def test_local_setting_of_a_hook_ends_with_its_phase(work):
    class Tenant(Middleware):
        @contextmanager
        def around_complete(self, job):
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL application_name = 'tenant-1'")
            yield

        around_prepare = around_complete

    names = []

    def read_setting():
        with connection.cursor() as cursor:
            cursor.execute("SHOW application_name")
            names.append(cursor.fetchone()[0])

    processors = processors_with(Tenant())

    @processors.register("reads")
    def reads(job):
        with job.prepare():
            read_setting()
        read_setting()
        with job.complete():
            read_setting()

    reads.enqueue()
    work(processors)
    assert [name == "tenant-1" for name in names] == [True, False, True]


def test_writes_of_a_hook_after_the_handler_are_committed_with_the_completion(work):
    class Writing(Middleware):
        @contextmanager
        def around_handler(self, job):
            yield
            effect(job, "audit")
            if job.input == "break":
                raise RuntimeError("broken after the write")

    processors = processors_with(Writing())

    @processors.register("write")
    def write(job):
        with job.complete():
            effect(job, "own")

    kept, rolled_back = write.enqueue("keep"), write.enqueue("break")
    work(processors)
    assert (kept.refresh().status, rolled_back.refresh().status) == ("completed", "pending")
    assert sorted(Effect.objects.values_list("job_id", "label")) == [(kept.id, "audit"), (kept.id, "own")]


def test_middleware_applies_only_to_its_own_processors(work):
    seen = []
    watched, plain = processors_with(Recording("watched", seen)), processors_with()
    first = watched.register("watched")(lambda job: None)
    second = plain.register("plain")(lambda job: seen.append("plain"))
    second.enqueue()
    first.enqueue()
    work(watched, plain, slots=1)
    assert seen[:2] == ["plain", "> watched handler"]
    assert seen.count("plain") == 1


@every_kind
def test_values_that_middleware_adds_to_the_context_last_for_one_attempt(scenario):
    clients, attempts = [], []

    class Client(Middleware):
        @contextmanager
        def around_handler(self, job):
            assert job.context == {}
            job.context["client"] = object()
            clients.append(job.context["client"])
            attempts.append(job)
            yield

    def handler(jobs):
        assert attempts[-1].context["client"] is clients[-1]
        yield outside(lambda: None)
        if len(attempts) == 1:
            raise RescheduleJob(delay=0)

    scenario = scenario.with_middleware(Client())
    scenario.enqueue(handler)
    scenario.run()
    assert (scenario.states(), len(set(map(id, clients)))) == ({"completed"}, 2)


def test_testing_kit_runs_middleware(registry):
    seen = []
    processors = processors_with(Recording("it", seen))
    chain = processors.register("kit")(lambda job: None).enqueue()
    registry.add(processors)
    run_due_jobs(raise_errors=True)
    assert (chain.refresh().status, seen[0], seen[-1]) == ("completed", "> it handler", "< it handler")


# Errors of the handler


def failing_in(phase):
    """Return a handler that writes in each phase, and fails in one of them."""

    def handler(jobs):
        failed = RuntimeError("declined")
        if phase == "prepare":
            yield prepare(write(jobs, "prepare", failed))
        if phase == "handler":
            yield outside(lambda: None)
            raise failed
        yield complete(write(jobs, "complete", failed if phase == "complete" else None))
        raise failed

    return handler


@every_kind_and(*PHASES, "after")
def test_middleware_observes_an_error_of_the_handler_in_its_phase(scenario, phase):
    seen = []
    scenario = scenario.with_middleware(Recording("it", seen))
    scenario.enqueue(failing_in(phase))
    scenario.run()
    assert (scenario.states(), scenario.errors()) == ({"retried"}, {"RuntimeError: declined"})
    assert f"< it {'handler' if phase == 'after' else phase}: RuntimeError" in seen
    assert seen[-1] == "< it handler: RuntimeError"


class Replacing(AllHooks):
    @contextmanager
    def around(self, name, job):
        try:
            yield
        except RuntimeError as error:
            raise FailJob("the card was declined") from error


@every_kind_and(*PHASES)
def test_middleware_may_replace_an_error(scenario, phase):
    seen = []
    scenario = scenario.with_middleware(Recording("outer", seen), Replacing(), Recording("inner", seen))
    scenario.enqueue(failing_in(phase))
    scenario.run()
    assert (scenario.states(), scenario.errors()) == ({"failed"}, {"FailJob: the card was declined"})
    assert (f"< inner {phase}: RuntimeError" in seen, seen[-1]) == (True, "< outer handler: FailJob")


@every_kind_and(*PHASES)
def test_swallowed_error_fails_the_attempt_and_is_raised_in_outer_middleware(scenario, phase):
    seen = []
    scenario = scenario.with_middleware(Recording("outer", seen), Swallowing(phase))
    scenario.enqueue(failing_in(phase))
    scenario.run()
    assert (scenario.states(), scenario.errors()) == ({"retried"}, {"RuntimeError: declined"})
    assert (f"< outer {phase}: RuntimeError" in seen, seen[-1]) == (True, "< outer handler: RuntimeError")
    hook = "aaround" if scenario.kind == "async" and phase == "handler" else "around"
    for failed in FailedAttempt.objects.all():
        assert f"Swallowing.{hook}_{phase}() swallowed this error." in failed.traceback
    assert effects() == []


def test_swallowed_error_of_an_atomic_handler_rolls_back_its_writes(work):
    processors = processors_with(Swallowing("prepare"), Swallowing("handler"))

    @processors.register("atomic", mode="atomic")
    def atomic(job):
        effect(job)
        raise RuntimeError("declined")

    chain = atomic.enqueue()
    work(processors)
    assert (chain.refresh().current_job.last_error, effects()) == ("RuntimeError: declined", [])


def test_stop_iteration_of_a_handler_is_not_changed(work):
    seen = []
    processors = processors_with(Recording("outer", seen), Middleware(), Recording("inner", seen))

    @processors.register("stops")
    def stops(job):
        raise StopIteration("no more")

    chain = stops.enqueue()
    work(processors)
    assert chain.refresh().current_job.last_error == "StopIteration: no more"
    assert seen[-2:] == ["< inner handler: StopIteration", "< outer handler: StopIteration"]


def test_lost_lease_cannot_be_swallowed(scenario):
    seen = []
    scenario = scenario.with_middleware(Recording("outer", seen), Swallowing("handler"))
    bump = Job.objects.update

    def slow(jobs):
        yield outside(lambda: on_own_connection(lambda: bump(lease_number=F("lease_number") + 1)))
        yield complete(write(jobs, "late"))

    scenario.enqueue(slow)
    scenario.run()
    assert (scenario.states(), effects(), seen[-1]) == ({"running"}, [], "< outer handler: LeaseLost")


# Errors of middleware


@every_kind_and(*PHASES)
@pytest.mark.parametrize("when", ["called", "entered", "left"])
def test_error_of_middleware_fails_the_attempt(scenario, phase, when):
    seen = []
    scenario = scenario.with_middleware(Recording("outer", seen), Failing(phase, when, RuntimeError("no tenant")))

    def good(jobs):
        if phase == "prepare":
            yield prepare(lambda: None)
        yield complete(write(jobs, "complete"))

    scenario.enqueue(good)
    scenario.run()
    assert (scenario.states(), scenario.errors()) == ({"retried"}, {"RuntimeError: no tenant"})
    assert f"< outer {phase}: RuntimeError" in seen
    assert effects() == []


@every_kind_and("prepare", "complete")
def test_error_of_middleware_in_a_phase_fails_the_attempt_even_if_the_handler_swallows_it(scenario, phase):
    scenario = scenario.with_middleware(Failing(phase, "entered", RuntimeError("no tenant")))

    def swallows(jobs):
        with pytest.raises(RuntimeError):
            yield (prepare if phase == "prepare" else complete)(lambda: None)

    scenario.enqueue(swallows)
    scenario.run()
    assert (scenario.states(), scenario.errors()) == ({"retried"}, {"RuntimeError: no tenant"})


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError(), StopIteration("x")], ids=repr)
def test_failing_middleware_affects_neither_the_worker_nor_other_jobs(work, error):
    broken, good = processors_with(Failing("handler", "left", error)), processors_with()
    first = broken.register("broken")(lambda job: None)
    second = good.register("good")(lambda job: 1)
    failing = [first.enqueue() for _ in range(3)]
    completing = [second.enqueue() for _ in range(3)]
    work(broken, good, slots=1)
    assert {chain.refresh().status for chain in failing} == {"pending"}
    assert {chain.refresh().status for chain in completing} == {"completed"}
    assert {type(error).__name__ in chain.current_job.last_error for chain in failing} == {True}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([Middleware], r"holds the class Middleware: give an instance, Middleware\(\)"),
        ([print], "not middleware: subclass"),
        (Middleware(), "give a list"),
        (5, "give a list"),
    ],
)
def test_middleware_must_be_a_list_of_instances(wrong, message):
    with pytest.raises(RegistryError, match=message):
        Processors(middleware=wrong)


def test_error_for_a_hook_without_contextmanager_suggests_it(work):
    class Undecorated(Middleware):
        def around_handler(self, job):
            yield

    processors = processors_with(Undecorated())
    chain = processors.register("never")(lambda job: None).enqueue()
    work(processors)
    error = Job.objects.get(pk=chain.id).last_error
    assert "around_handler() returned a generator, not a context manager: is @contextmanager missing?" in error
