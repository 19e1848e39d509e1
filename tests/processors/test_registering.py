"""A decorated function becomes a job type, which is typed by its annotations and still callable."""

import asyncio
import functools
import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import pytest
from django.core.exceptions import ImproperlyConfigured
from pydantic import Field
from typing_extensions import TypedDict

from django_jobchains.chains import Chain
from django_jobchains.exceptions import (
    InvalidDeclaration,
    InvalidInput,
    InvalidOutput,
    ProcessorNotFound,
    RegistryError,
)
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.processors import (
    Backoff,
    Batch,
    Continuation,
    JobType,
    Lease,
    Processors,
    Registry,
    RunningJob,
)
from django_jobchains.worker import Worker

T = TypeVar("T")


@dataclass(frozen=True)
class Charge:
    order_id: int


class Receipt(TypedDict):
    number: int


@pytest.fixture
def processors():
    return Processors()


def accepts(job_type, value):
    try:
        job_type.item(value)
    except InvalidInput:
        return False
    return True


def returns(job_type, value):
    try:
        job_type.encode_output(value)
    except InvalidOutput:
        return False
    return True


async def later(job: RunningJob[Charge]) -> int:
    return job.input.order_id


class Later:
    async def __call__(self, job: RunningJob[Charge]) -> int: ...

    async def handle(self, job: RunningJob[Charge]) -> int: ...


class Now:
    def __call__(self, job: RunningJob[Charge]) -> int: ...

    def handle(self, job: RunningJob[Charge]) -> int: ...


def now(job: RunningJob[Charge], retries: int = 3) -> int:
    return job.input.order_id


NOW = {"function": now, "partial": functools.partial(now, retries=1), "object": Now(), "method": Now().handle}
LATER = {"function": later, "partial": functools.partial(later), "object": Later(), "method": Later().handle}
async_handlers = pytest.mark.parametrize("handler", LATER.values(), ids=LATER)


def test_register_returns_a_job_type_with_that_name(processors):
    charge = processors.register("shop.charge")(now)
    assert isinstance(charge, JobType)
    assert charge.name == "shop.charge"
    assert repr(charge) == "<JobType shop.charge>"
    assert [processor.job_type for processor in processors] == [charge]


def test_a_job_type_is_callable_like_its_function(processors):
    class Job:
        input = Charge(41)

    assert processors.register("now")(now)(Job()) == 41
    assert asyncio.run(processors.register("later")(later)(Job())) == 41
    with pytest.raises(ProcessorNotFound, match=r"No processor for 'shop\.approval'"):
        JobType("shop.approval")(Job())


@pytest.mark.parametrize(("handlers", "is_async"), [(NOW, False), (LATER, True)], ids=["plain", "async"])
@pytest.mark.parametrize("kind", NOW)
def test_a_handler_may_be_any_callable_with_a_job_argument(processors, handlers, is_async, kind):
    charge = processors.register("charge")(handlers[kind])
    assert processors.by_name["charge"].is_async is is_async
    assert accepts(charge, Charge(1))
    assert not accepts(charge, "x")
    assert returns(charge, 1)
    assert not returns(charge, "x")


@pytest.mark.parametrize("handler", [now, later])
def test_a_handler_may_be_registered_for_several_types(processors, handler):
    old = processors.register("shop.pay", max_attempts=3)(handler)
    new = processors.register("shop.charge")(old)
    assert new.name == "shop.charge"
    for job_type in (old, new):
        assert job_type.processor.is_async is (handler is later)
        assert accepts(job_type, Charge(1))
        assert not accepts(job_type, "x")
        assert not returns(job_type, "x")
    assert [job_type.processor.policies[0].max_attempts for job_type in (old, new)] == [3, None]
    with pytest.raises(RegistryError, match=r"'shop\.refund': No processor for 'shop\.approval'"):
        processors.register("shop.refund")(JobType("shop.approval"))


def unannotated(job): ...
def with_any(job: RunningJob) -> Any: ...
def generic(job: RunningJob[T]) -> T: ...
def nothing(job: RunningJob[Any]) -> None: ...
def receipt(job: RunningJob[Charge]) -> Receipt: ...
def in_strings(job: "RunningJob[Charge]") -> "Receipt": ...
def either(job: RunningJob[Charge]) -> Receipt | Continuation: ...
def only_continues(job: RunningJob[Any]) -> Continuation: ...


RECEIPT = {"number": 1}
VALUES = [{"any": ["JSON", 1, None]}, RECEIPT, "x", None, Charge(1)]
PLAIN = VALUES[:-1]


@pytest.mark.parametrize(
    ("function", "options", "inputs", "outputs"),
    [
        (unannotated, {}, PLAIN, PLAIN),
        (with_any, {}, PLAIN, PLAIN),
        (generic, {}, PLAIN, PLAIN),
        (nothing, {}, PLAIN, [None]),
        (nothing, {"input": None}, [None], [None]),
        (receipt, {}, [Charge(1)], [RECEIPT]),
        (in_strings, {}, [Charge(1)], [RECEIPT]),
        (either, {}, [Charge(1)], [RECEIPT]),
        (only_continues, {}, PLAIN, [None]),
        (receipt, {"input": None, "output": str}, [None], ["x"]),
        (unannotated, {"input": Charge, "output": Receipt}, [Charge(1)], [RECEIPT]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_annotations_and_options_are_the_types_of_input_and_output(processors, function, options, inputs, outputs):
    job_type = processors.register("typed", **options)(function)
    assert [value for value in VALUES if accepts(job_type, value)] == inputs
    assert [value for value in VALUES if returns(job_type, value)] == outputs


Positive = Annotated[int, Field(gt=0)]
AnnotatedCharge = Annotated[Charge, ["metadata that is not hashable"]]


def positive(job: RunningJob[Positive]) -> Positive: ...
def positive_in_strings(job: "RunningJob[Positive]") -> "Positive | Continuation": ...
def positives(job: RunningJob[list[Positive]]) -> list[Positive]: ...
def annotated_charges(job: RunningJob[list[AnnotatedCharge]]) -> list[AnnotatedCharge]: ...
def annotated_job(job: Annotated[RunningJob[Positive], "job"]) -> Annotated[int | Continuation, Field(gt=0)]: ...
def batch_of_positives(jobs: Batch[Positive]) -> None: ...
def annotated_charge(job: RunningJob[AnnotatedCharge]) -> AnnotatedCharge: ...
def after_a_charge(job: RunningJob[None, tuple[Chain[Charge]]]) -> None: ...


NUMBERS = [1, -1, [1], [-1]]


@pytest.mark.parametrize(
    ("function", "options", "inputs", "outputs"),
    [
        (positive, {}, [1], [1]),
        (positive_in_strings, {}, [1], [1]),
        (positives, {}, [[1]], [[1]]),
        (annotated_charges, {}, [], []),
        (annotated_job, {}, [1], [1]),
        (batch_of_positives, {"batch_limit": 2}, [1], NUMBERS),
        (unannotated, {"input": Positive, "output": Positive}, [1], [1]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_metadata_of_annotated_types_applies(processors, function, options, inputs, outputs):
    job_type = processors.register("typed", **options)(function)
    assert [value for value in NUMBERS if accepts(job_type, value)] == inputs
    assert [value for value in NUMBERS if returns(job_type, value)] == outputs


def test_fields_blockers_and_messages_do_not_depend_on_metadata(processors):
    charge = processors.register("charge")(annotated_charge)
    with pytest.raises(RegistryError, match=r"'order', which is not a field of the input\. It has order_id"):
        processors.register("labelled", label="Order {order}")(annotated_charge)
    processors.register("ship", blockers=(charge,))(after_a_charge)
    with pytest.raises(InvalidInput, match="not a Charge: order_id: Field required"):
        charge.item({})


class Opaque: ...


def ghost(job: "RunningJob[Ghost]") -> None: ...  # type: ignore[name-defined] # noqa: F821
def opaque(job: RunningJob[Opaque]) -> None: ...
def no_parameter() -> None: ...
def two_parameters(job: RunningJob[Any], other: int) -> None: ...
def a_keyword(*, job: RunningJob[Any]) -> None: ...


def pages(job: RunningJob[Any]) -> Any:
    yield 1


async def async_pages(job: RunningJob[Any]) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (ghost, r"The annotations of 'ghost' cannot be read.*pass input= and output="),
        (opaque, "Opaque cannot be stored as JSON"),
        (pages, "'pages' is a generator: remove 'yield' from it"),
        (async_pages, "'async_pages' is a generator: remove 'yield' from it"),
        (no_parameter, "must take one argument"),
        (two_parameters, "must take one argument"),
        (a_keyword, "must take one argument"),
    ],
)
def test_a_function_that_cannot_be_a_handler_is_refused(processors, function, words):
    with pytest.raises(RegistryError, match=words):
        processors.register("wrong")(function)
    assert list(processors) == []


@async_handlers
def test_an_async_handler_cannot_be_atomic(processors, handler):
    with pytest.raises(RegistryError, match=r"mode='atomic' would hold a transaction while it awaits.*job\.acomplete"):
        processors.register("later", mode="atomic")(handler)


def test_a_name_is_1_to_200_printable_characters_of_any_script(processors):
    assert JobType("ü" * 200).name == "ü" * 200
    for name in ("", "x" * 201):
        for declare in (JobType, processors.register):
            with pytest.raises(RegistryError, match="1 to 200 printable characters"):
                declare(name)


async def retry_later(error):
    return True


#: Options of processors, which slices and workers accept too, with the message of the error.
WRONG_POLICIES = [
    ({"backoff": 3}, r"backoff=3 is not a Backoff: pass Backoff\(initial_seconds="),
    ({"backoff": Backoff}, r"backoff=<class .* is not a Backoff"),
    ({"backoff": lambda failures: 3}, r"backoff=<function .* must take two arguments, the number of failures and"),
    ({"backoff": retry_later}, r"backoff=<function .* pass a plain function that takes two arguments"),
    ({"lease": 0}, "lease=0 is not a duration"),
    ({"lease": Backoff()}, r"lease=Backoff\(.* is not a duration"),
    ({"max_attempts": 0}, "max_attempts=0 is not a whole number from 1 to 2147483647, or math.inf for no limit"),
    ({"timeout": "5x"}, "timeout='5x' is not a duration: .*, or math.inf for no limit"),
    ({"retention": timedelta(days=30)}, r"retention=.* is not a Retention: pass Retention\(completed="),
    ({"queue": ""}, "queue='' is not a name: pass 1 to 100 printable characters"),
]
WRONG_OPTIONS = [
    *WRONG_POLICIES,
    ({"mode": "eager"}, "mode='eager' is not one of 'staged', 'atomic'"),
    ({"entry": "no"}, "entry='no' is not one of True, False"),
    ({"on_blocker_failure": "stop"}, "on_blocker_failure='stop' is not one of 'wait', 'fail', 'run'"),
    ({"continues_with": 5}, "continues_with=5: pass a list of job types or their names"),
    ({"continues_with": ["a", 5]}, r"continues_with=\['a', 5\]: pass a list of job types or their names"),
    ({"blockers": [None]}, r"blockers=\[None\]: pass a list of job types or their names"),
    ({"fail_on": "OSError"}, "fail_on='OSError': pass exception classes"),
    ({"fail_on": OSError("x")}, "fail_on=OSError.*: pass exception classes"),
    ({"fail_on": [OSError, int]}, "fail_on=.*: pass exception classes"),
    ({"retry_if": "x"}, "retry_if='x': pass a plain function that takes one argument, the error"),
    ({"retry_if": OSError}, "retry_if=<class 'OSError'>: pass a plain function"),
    ({"retry_if": retry_later}, "retry_if=<function .*: pass a plain function"),
    ({"retry_if": lambda: True}, "retry_if=<function .* must take one argument"),
    ({"priority": 40_000}, "priority=40000 is not a whole number"),
    ({"on_failure": ""}, "on_failure='' is not a name: pass 1 to 200 printable characters"),
    ({"on_failure": 5}, "A job type is given as a JobType or by its name, not as int"),
    ({"batch_limit": 0}, "batch_limit=0 is not a whole number from 1"),
    ({"input": "Charge"}, "'Charge' as input or output is a string: pass the type itself"),
    ({"input": Charge(1)}, "cannot be an input or output"),
    ({"output": []}, "cannot be an input or output"),
]


def named(value):
    """Return an id without addresses, which would differ between the processes of a parallel run."""
    options = value.items() if isinstance(value, dict) else ()
    return ", ".join(f"{name}={repr(option).partition(' at 0x')[0]:.40}" for name, option in options)


@pytest.mark.parametrize(("options", "words"), WRONG_OPTIONS, ids=named)
def test_an_invalid_option_is_an_error_that_names_the_type(processors, options, words):
    with pytest.raises(InvalidDeclaration, match=rf"(?s)^Job type 'shop\.wrong': .*{words}") as caught:
        processors.register("shop.wrong", **options)(lambda job: None)
    assert caught.value.type_name == "shop.wrong"
    assert list(processors) == []


def test_slices_workers_and_declared_types_check_their_options_in_the_same_way():
    for options, words in WRONG_POLICIES:
        with pytest.raises(RegistryError, match=rf"^Processors\(\): .*{words}"):
            Processors(**options)
        if not options.keys() & {"retention", "queue"}:
            with pytest.raises(ImproperlyConfigured, match=rf"^Worker\(\): .*{words}"):
                Worker(registry=Registry(), **options)
    with pytest.raises(InvalidDeclaration, match=r"^Job type 'shop\.wrong': blockers=5: pass a list of job types"):
        JobType("shop.wrong", blockers=5)


def test_register_without_parentheses_and_unknown_arguments_are_errors(processors):
    """Otherwise the function would not become a job type, without any message."""
    with pytest.raises(RegistryError, match=r"@processors\.register\('app\.name'\)"):
        processors.register(now)
    with pytest.raises(
        TypeError,
        match=r"^register\(\) .* argument max_attempt\. Did you mean 'max_attempts'\?",
    ):
        processors.register("misspelt", max_attempt=3)


@pytest.mark.parametrize(
    ("fail_on", "kinds"),
    [
        (OSError, (OSError,)),
        ([OSError, KeyError], (OSError, KeyError)),
        ({OSError}, (OSError,)),
        ((kind for kind in [OSError]), (OSError,)),
        ([], ()),
        (None, ()),
    ],
)
def test_fail_on_is_one_exception_class_or_several(processors, fail_on, kinds):
    processors.register("shop.charge", fail_on=fail_on)(lambda job: None)
    assert processors.by_name["shop.charge"].retry.fail_on == kinds


@pytest.mark.parametrize("lease", [Lease(30), 30, timedelta(seconds=30)], ids=repr)
def test_a_lease_may_be_a_number_or_a_timedelta(lease):
    part = Processors(lease=lease)
    part.register("shop.charge", lease=lease, max_attempts=math.inf)(lambda job: None)
    assert [policy.lease for policy in part.by_name["shop.charge"].policies] == [Lease(30), Lease(30)]
    assert part.by_name["shop.charge"].policies[0].max_attempts == math.inf


@pytest.mark.parametrize("names", ["shop.next", ["shop.next"], ("shop.next",), {"shop.next"}, JobType("shop.next")])
def test_continuations_and_blockers_are_one_type_or_several(processors, names):
    charge = processors.register("shop.charge", continues_with=names, blockers=names)(lambda job: None)
    assert charge.continues_with == charge.blockers == {"shop.next"}


@pytest.mark.django_db
def test_options_of_enqueue_override_the_processor_and_its_options_the_slice():
    part = Processors(queue="slow")
    follows = part.register("follows", priority=3)(lambda job: None)
    differs = part.register("differs", queue="fast")(lambda job: None)
    jobs = [
        chain.current_job for chain in (follows.enqueue(), differs.enqueue(), differs.enqueue(queue="q", priority=1))
    ]
    assert [(job.queue, job.priority) for job in jobs] == [("slow", 3), ("fast", 0), ("q", 1)]


def test_an_abort_signal_keeps_its_first_reason_and_calls_back_once():
    signal = AbortSignal()
    called = []
    signal.on_abort(lambda: called.append("before"))
    signal.raise_if_aborted()
    assert not signal.wait(0)
    signal.abort("cancelled")
    signal.abort("error")
    signal.on_abort(lambda: called.append("after"))
    assert (signal.aborted, signal.reason, signal.wait(0)) == (True, "cancelled", True)
    assert called == ["before", "after"]
