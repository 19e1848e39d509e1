"""Error messages that many people meet: each names what was called, what is wrong with it, and what to do instead."""

import asyncio
import copy
import inspect
import pickle
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import CommandError, call_command

from django_jobchains import chains, exceptions, limits, monitoring, queues, records, schedules, testing
from django_jobchains.exceptions import InvalidInput, RescheduleJob
from django_jobchains.handlers.batch import Batch
from django_jobchains.handlers.running_job import RunningJob
from django_jobchains.models import Chain, Job
from django_jobchains.notifications import NullNotifier
from django_jobchains.processors import JobType, Processors
from django_jobchains.records.operations import RecordQuerySet

charge = JobType("messages.charge", input=int, output=int)

#: What a handler's parameter may be annotated with, other than ``RunningJob[…]``.
PARAMETERS = [None, RunningJob, "RunningJob", object, Any, RunningJob[int] | Batch[int]]


class Plain:
    """A class without anything that tells how to store its instances."""


@dataclass(frozen=True)
class Invoice:
    order_id: int


def registered(annotation, **options):
    def ship(job): ...

    if annotation is not None:
        ship.__annotations__["job"] = annotation
    return Processors().register("messages.ship", **options)(ship)


async def enqueued_in_async_code(call):
    return call()


def in_async_code(call):
    return lambda: asyncio.run(enqueued_in_async_code(call))


def worker(*arguments):
    return lambda: call_command("run_jobworker", "--burst", *arguments)


OPTIONS = "run_at, delay, blockers, priority, queue, id, expires, deduplicate, max_attempts, using"
NO_DELAY = "is not a duration: pass 0 or more seconds"
OF_INPUT = "but takes a RunningJob: annotate it with RunningJob"
IN_ASYNC_CODE = "In async code, enqueue with 'await job_type.aenqueue(…)' or 'await chains.aenqueue_many(…)'."

MESSAGES = [
    (lambda: charge.enqueue(1, shadow=5), f"enqueue() does not take the argument shadow. It takes {OPTIONS}."),
    (lambda: chains.enqueue(charge, 1, eta=5, to=1), "does not take the arguments eta, to. Did you mean 'run_at'?"),
    (lambda: charge.item(1, countdown=5), "item() does not take the argument countdown. Did you mean 'delay'?"),
    (lambda: Processors().register("x", max_retries=3), "the argument max_retries. Did you mean 'max_attempts'?"),
    (lambda: charge.item(1, priorty=5), "item() does not take the argument priorty. Did you mean 'priority'?"),
    (lambda: Processors().register("x", bakoff=3), "register() does not take the argument bakoff. Did you mean"),
    (lambda: charge.enqueue(), "Input of 'messages.charge': not an int: pass int, not None."),
    (lambda: JobType("x", input=None).enqueue(5), "Input of 'x': not None: it is declared without a value, so pass"),
    (lambda: charge.input_codec.decode('"x"', InvalidInput), "Not an int: Input should be a valid integer"),
    (lambda: JobType("x", input=Invoice).enqueue(5), "Input of 'x': not an Invoice: pass Invoice(order_id=…), not"),
    (lambda: JobType("x").enqueue(b"5"), "Input of 'x': at $: bytes is not JSON: annotate the handler with"),
    (lambda: registered(RunningJob[int])(5), "'messages.ship' takes a job when it is called. To start a job with"),
    (lambda: JobType("a mail"), "name='a mail' has a space in it: use dots, as in 'app.send_mail'."),
    (lambda: Job.objects.of_type(5), "A job type is given as a JobType or by its name, not as int: 5."),
    (lambda: Chain.objects.of_chain_type(None), "A job type is given as a JobType or by its name, not as NoneType"),
    (lambda: Chain.objects.with_status("canceled"), "'canceled' is not a status. Did you mean 'cancelled'? Known: "),
    (lambda: Job.objects.created_between("5m", None), "start is a datetime with a time zone, not str."),
    (lambda: charge.enqueue(1, delay=-5), f"delay=-5 {NO_DELAY}"),
    (lambda: RescheduleJob(delay="-5m"), f"delay='-5m' {NO_DELAY}"),
    (lambda: chains.complete(charge.enqueue(1), "5 pages", charge), "Output of 'messages.charge': not an int: "),
    (lambda: charge.enqueue(1, delay=timedelta(hours=-1)), NO_DELAY),
    (lambda: registered(RunningJob[Job]), "Job cannot be stored as JSON: pass its primary key, or a dataclass."),
    (lambda: registered(RunningJob[Plain]), "Plain cannot be stored as JSON: pass its primary key, or a dataclass."),
    (lambda: registered(RunningJob[list[Job]]), "list with Job in it cannot be stored as JSON: pass its primary key"),
    (lambda: JobType("x", output=Job), "Job cannot be stored as JSON"),
    (lambda: registered(int), f"ship' is annotated with int, {OF_INPUT}[int], and read the input from job.input."),
    (lambda: registered(Invoice), f"ship' is annotated with Invoice, {OF_INPUT}[Invoice]"),
    (lambda: registered(int | None), f"ship' is annotated with int | None, {OF_INPUT}[int | None]"),
    (lambda: registered(list[int], batch_limit=5), "but takes a Batch: annotate it with Batch[list]"),
    (lambda: registered(RunningJob[int], batch_limit=5), "ship' takes a Batch[…] of jobs, not a RunningJob."),
    (lambda: records.cancel(5), "Pass instances of one model, or a QuerySet, not 5."),
    (lambda: chains.prune("5d", statuses=["running"]), "Chains that are 'running' cannot be pruned: pass"),
    (in_async_code(charge.enqueue), "not an int"),
    (in_async_code(lambda: charge.enqueue(1)), IN_ASYNC_CODE),
    (in_async_code(lambda: chains.enqueue_many([charge.item(1)])), IN_ASYNC_CODE),
    (worker("--queue", ""), "argument --queue: '' is not a name: pass 1 to 100 printable characters"),
    (worker("--queue-slots", "mail"), "'mail' must be the name of a queue and a number of slots, as in mail=2"),
    (worker("--queue-slots", "mail=0"), "'mail=0' must be the name of a queue and a number of slots"),
    (worker("--type", ""), "argument --type: '' is not a name: pass 1 to 200 printable characters"),
    (worker("--name", "x" * 101), "name='xxx"),
]  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize(("call", "words"), MESSAGES, ids=[words[:50] for _, words in MESSAGES])
def test_a_message_names_the_problem_and_the_remedy(call, words):
    with pytest.raises((Exception, SynchronousOnlyOperation)) as caught:
        call()
    text = str(caught.value)
    assert words in text
    assert "Worker()" not in text
    assert not re.search(r"\.\.|\. \.|\n", text)
    assert text.endswith(".") or isinstance(caught.value, CommandError)  # argparse's own have no full stop


MODULES = (chains, limits, monitoring, queues, records, schedules, testing)
#: By function: how its twin is called.
TWINS = {
    getattr(module, name): f"await {module.__name__.removeprefix('django_jobchains.')}.a{name}(…)"
    for module in MODULES
    for name in module.__all__
    if f"a{name}" in module.__all__ and not name.startswith("enqueue")
} | {
    chains.wait: "await chains.await_chain(…)",
    chains.current_job: "async with chains.acurrent_job(…)",
    Chain.result: "await chain.aresult(…)",
    RecordQuerySet.exists_in: "await queryset.aexists_in(…)",
    RecordQuerySet.queued_count: "await queryset.aqueued_count(…)",
    RecordQuerySet.max_duration_in_queue: "await queryset.amax_duration_in_queue(…)",
}


@pytest.mark.parametrize(("function", "twin"), TWINS.items(), ids=TWINS.values())
def test_a_function_that_would_block_the_event_loop_names_its_async_twin(function, twin):
    with pytest.raises(SynchronousOnlyOperation, match=re.escape(f"() would block the event loop: use '{twin}'.")):
        in_async_code(function)()


@pytest.mark.parametrize("annotation", PARAMETERS, ids=str)
def test_other_annotations_of_the_parameter_are_accepted(annotation):
    assert registered(annotation).name == "messages.ship"


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({"NOTIFIER": "redis"}, "JOBCHAINS['NOTIFIER']"),
        ({"NOTIFIER": ["redis"]}, "JOBCHAINS['NOTIFIER']"),
        ({"NOTIFIER": {"OPTIONS": "redis"}}, "JOBCHAINS['NOTIFIER']"),
        ({"NOTIFIER": {"BACKEND": 5}}, "JOBCHAINS['NOTIFIER']"),
        ({"NOTIFIER": {"BACKEND": NullNotifier}}, "JOBCHAINS['NOTIFIER']"),
        ({"DATABASES": {"archive": {"NOTIFIER": "redis"}}}, "JOBCHAINS['DATABASES']['archive']['NOTIFIER']"),
    ],
)
def test_an_invalid_notifier_is_reported_by_a_check(settings, registry, processors, setting, name):
    charge.input_codec.encode(5, InvalidInput)
    processors.schedule("nightly", charge, every="1d", input=5)
    registry.add(processors)
    settings.JOBCHAINS = setting
    [problem] = run_checks(tags=["jobchains"])
    assert problem.id == "jobchains.E001"
    assert problem.msg.startswith(f"{name} must be {{'BACKEND': dotted path, 'OPTIONS': {{…}}}}, or empty for ")


ERRORS = [
    error
    for module in (exceptions, records)
    for error in vars(module).values()
    if isinstance(error, type) and issubclass(error, Exception)
]
#: Arguments of errors, by their names. Others may be any text.
ARGUMENTS = {
    "ids": ["a"], "references": [("chain", "job")], "seconds": 5, "exitcode": 3, "max_queries": 5,
    "first": None, "second": None,
}  # fmt: skip


def an_error(kind):
    if kind is RescheduleJob:
        return kind(delay=5)
    _, *parameters = inspect.signature(kind.__init__).parameters.values()
    required = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    return kind(*(ARGUMENTS.get(name, name) for name in required))


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
def test_errors_can_be_copied_and_pickled(kind, copied):
    """Django's parallel test runner and process pools pass errors to other processes."""
    error = an_error(kind)
    error.add_note("a note")
    back = copied(error)
    assert type(back) is kind
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))
