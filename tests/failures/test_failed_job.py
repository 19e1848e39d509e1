"""The input, queue and context of the chain that ``on_failure`` enqueues, and the declarations that are refused."""

from collections.abc import Callable
from uuid import UUID

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test.utils import CaptureQueriesContext

from django_jobchains import context
from django_jobchains.declare.checks import check_registry
from django_jobchains.models import Job
from django_jobchains.processors import FailedJob, FailJob, JobType, Processors, Registry, RunningJob
from django_jobchains.store.rows import FailedTry
from django_jobchains.worker import Worker
from tests.support.attempts import committed

pytestmark = committed

Run = Callable[..., None]


def fail(job):
    raise FailJob("no")


def test_handler_gets_a_failed_job_with_ids(processors, work):
    seen = []

    @processors.register("shop.alert")
    def alert(job: RunningJob[FailedJob]):
        seen.append(job.input)

    processors.register("shop.next", entry=False, on_failure=alert)(fail)
    chain = processors.register("shop.first")(lambda job: job.continue_with("shop.next", [1, {"a": 1e23}])).enqueue()
    work()
    job = Job.objects.of_type("shop.next").get()
    assert seen == [FailedJob(chain.id, job.id, "shop.next", 1, "FailJob: no", [1, {"a": 1e23}])]
    assert isinstance(seen[0].chain_id, UUID)
    assert isinstance(seen[0].input[1]["a"], float)


def test_handler_without_an_input_type_gets_a_dict_of_strings(processors, work):
    seen = []
    processors.register("shop.alert")(lambda job: seen.append(job.input))
    chain = processors.register("shop.broken", on_failure="shop.alert")(fail).enqueue()
    work()
    assert seen == [
        {
            "chain_id": str(chain.id),
            "job_id": str(chain.id),
            "type_name": "shop.broken",
            "attempt": 1,
            "error": "FailJob: no",
            "input": None,
            "input_problem": "",
        }
    ]


def test_input_at_the_limits_is_passed_in_full(processors, settings, work):
    settings.JOBCHAINS = {**settings.JOBCHAINS, "MAX_PAYLOAD_BYTES": 200, "MAX_PAYLOAD_DEPTH": 5}
    seen = []
    processors.register("shop.alert")(lambda job: seen.append(job.input["input"]))
    largest = [[[[["ü" * 90]]]]]
    processors.register("shop.broken", on_failure="shop.alert")(fail).enqueue(largest)
    work()
    assert seen == [largest]


def test_input_that_cannot_be_decoded_is_replaced_by_the_reason(processors, work):
    """A failure must always be recorded."""
    seen = []
    processors.register("shop.alert")(lambda job: seen.append((job.input["input"], job.input["input_problem"])))
    chain = processors.register("shop.broken", on_failure="shop.alert")(fail).enqueue()
    too_deep = []
    for _ in range(905):
        too_deep = [too_deep]
    Job.objects.filter(pk=chain.id).update(input=too_deep)
    work()
    assert chain.refresh().status == "failed"
    [(input_, problem)] = seen
    assert input_ is None
    assert "nested deeper than 900 levels" in problem


def test_chain_has_the_queue_and_priority_of_its_type_and_the_context_of_the_failed_job(processors, registry, store):
    alerts = Processors(queue="alerts")
    registry.add(alerts)
    alerts.register("shop.alert", priority=7)(fail)
    broken = processors.register("shop.broken", on_failure="shop.alert", queue="slow", priority=-3)(fail)
    with context.bound(tenant="acme"):
        broken.enqueue(deduplicate=None)
    [job] = store.jobs.claim("worker", 1, {"shop.broken": 60})
    store.attempts.fail([FailedTry(job.id, job.lease_number, "no", "")])
    alert = Job.objects.of_type("shop.alert").get()
    assert (alert.queue, alert.priority, alert.context) == ("alerts", 7, {"tenant": "acme"})
    assert (alert.chain_id, alert.chain_index, alert.chain_type_name) == (alert.id, 0, "shop.alert")
    assert (alert.attempt, alert.crashes, alert.max_attempts, alert.deduplication_key) == (0, 0, None, None)
    assert alert.run_at == alert.created_at


def test_processors_may_contain_the_type_that_handles_their_failures(registry, work):
    part = Processors(on_failure="shop.alert")
    registry.add(part)
    part.register("shop.alert")(fail)
    part.register("shop.broken")(fail).enqueue()
    work()
    assert sorted(Job.objects.values_list("type_name", "status")) == [
        ("shop.alert", "failed"),
        ("shop.broken", "failed"),
    ]


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize(("on_failure", "statements"), [(None, 3), ("shop.alert", 5)])
def test_number_of_statements_is_constant(processors, store, count, on_failure, statements):
    broken = processors.register("shop.broken", on_failure=on_failure)(fail)
    for _ in range(count):
        broken.enqueue()
    jobs = store.jobs.claim("worker", count, {"shop.broken": 60})
    tries = [FailedTry(job.id, job.lease_number, "no", "") for job in jobs]
    with CaptureQueriesContext(store.connection) as captured:
        store.attempts.fail(tries)
    sent = [query["sql"] for query in captured if query["sql"] not in ("BEGIN", "BEGIN IMMEDIATE", "COMMIT")]
    assert len(sent) == statements, sent
    assert Job.objects.of_type("shop.alert").count() == (count if on_failure else 0)


def not_declared(part):
    part.register("shop.broken", on_failure="shop.alert")(fail)
    return "'shop.broken' has on_failure='shop.alert', which no app declares"


def not_an_entry(part):
    part.register("shop.broken", on_failure="shop.alert")(fail)
    part.register("shop.alert", entry=False)(fail)
    return "'shop.broken' has on_failure='shop.alert', which is declared with entry=False"


def requiring_blockers(part):
    part.register("shop.broken", on_failure="shop.alert")(fail)
    part.register("shop.part")(fail)
    part.register("shop.alert", blockers=("shop.part",))(fail)
    return "'shop.broken' has on_failure='shop.alert', which requires blockers"


def itself(part):
    part.register("shop.broken", on_failure="shop.broken")(fail)
    return "'shop.broken' has on_failure='shop.broken', which leads back to it"


def circle(part):
    part.register("shop.broken", on_failure="shop.alert")(fail)
    part.register("shop.alert", on_failure="shop.broken")(fail)
    return "'shop.broken' has on_failure='shop.alert', which leads back to it"


@pytest.mark.parametrize("declare", [not_declared, not_an_entry, requiring_blockers, itself, circle])
def test_type_that_cannot_handle_failures_fails_the_system_check_and_the_start_of_a_worker(processors, declare):
    problem = declare(processors)
    messages = check_registry()
    assert {message.id for message in messages} == {"jobchains.E009"}
    assert messages[0].msg.startswith(problem)
    with pytest.raises(ImproperlyConfigured, match=problem):
        Worker()


def test_type_that_handles_failures_may_have_its_own_on_failure(processors):
    processors.register("shop.broken", on_failure="shop.undo")(fail)
    processors.register("shop.undo", on_failure="shop.alert")(fail)
    processors.register("shop.alert")(fail)
    assert check_registry() == []
    Worker()


def test_chain_is_enqueued_for_a_type_without_a_processor(processors, store):
    processors.register("shop.broken", on_failure="shop.alert")(fail).enqueue()
    [job] = store.jobs.claim("worker", 1, {"shop.broken": 60})
    store.attempts.fail([FailedTry(job.id, job.lease_number, "no", "")])
    assert Job.objects.of_type("shop.alert").get().queue == "default"


def test_worker_with_its_own_registry_refuses_on_failure(registry):
    part, other = Processors(), Registry()
    other.add(part)
    part.register("shop.broken", on_failure=JobType("shop.alert"))(fail)
    other.add(JobType("shop.alert"))
    with pytest.raises(ImproperlyConfigured, match="on_failure works for types in the project's registry only"):
        Worker(registry=other)
