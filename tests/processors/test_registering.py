"""A decorated function becomes a job type, which is typed by its annotations and still callable."""

import asyncio
import functools
import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from django.core.exceptions import ImproperlyConfigured
from typing_extensions import TypedDict

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


def accepts(job_type: JobType[Any, Any], value: Any) -> bool:
    try:
        job_type.item(value)
    except InvalidInput:
        return False
    return True


def returns(job_type: JobType[Any, Any], value: Any) -> bool:
    try:
        job_type.encode_output(value)
    except InvalidOutput:
        return False
    return True


def test_register_returns_a_job_type_with_that_name(processors):
    @processors.register("shop.charge")
    def charge(job: RunningJob[Any]) -> None: ...

    assert isinstance(charge, JobType)
    assert charge.name == "shop.charge"
    assert repr(charge) == "<JobType shop.charge>"
    assert [processor.job_type for processor in processors] == [charge]


def test_a_job_type_is_callable_like_its_function(processors):
    @processors.register("shop.charge")
    def charge(job: RunningJob[Charge]) -> int:
        return job.input.order_id + job.attempt

    class Job:
        input = Charge(41)
        attempt = 1

    assert charge(Job()) == 42


def test_a_declared_type_without_processor_cannot_be_called():
    with pytest.raises(ProcessorNotFound, match=r"No processor for 'shop\.approval'"):
        JobType("shop.approval")(object())


def test_the_input_type_is_the_parameters_annotation(processors):
    @processors.register("charge")
    def charge(job: RunningJob[Charge]) -> None: ...

    assert accepts(charge, Charge(1))
    assert not accepts(charge, "x")
    assert not accepts(charge, None)


def test_the_output_type_is_the_return_annotation(processors):
    @processors.register("charge")
    def charge(job: RunningJob[Charge]) -> Receipt:
        return {"number": 1}

    assert returns(charge, {"number": 1})
    assert not returns(charge, {"number": "one"})
    assert not returns(charge, None)


def test_a_continuation_in_the_return_annotation_is_not_an_output(processors):
    @processors.register("either")
    def either(job: RunningJob[Any]) -> Receipt | Continuation:
        return {"number": 1}

    @processors.register("only")
    def only(job: RunningJob[Any]) -> Continuation:
        raise NotImplementedError

    assert returns(either, {"number": 1})
    assert not returns(either, "x")
    assert returns(only, None)
    assert not returns(only, "x")


def test_a_handler_annotated_with_none_has_no_output(processors):
    @processors.register("none")
    def none(job: RunningJob[Any]) -> None: ...

    assert returns(none, None)
    assert not returns(none, "x")


def test_without_annotations_any_json_is_valid(processors):
    @processors.register("untyped")
    def untyped(job):
        return job.input

    @processors.register("bare")
    def bare(job: RunningJob) -> Any:
        return job.input

    @processors.register("generic")
    def generic(job: RunningJob[T]) -> T:
        return job.input

    for job_type in (untyped, bare, generic):
        assert accepts(job_type, {"any": ["JSON", 1, None]})
        assert not accepts(job_type, Charge(1))
        assert returns(job_type, {"any": ["JSON", 1, None]})


def test_input_and_output_of_register_override_the_annotations(processors):
    @processors.register("given", input=Charge, output=int)
    def given(job: RunningJob[str]) -> str:
        return ""

    assert accepts(given, Charge(1))
    assert not accepts(given, "x")
    assert returns(given, 1)
    assert not returns(given, "x")


def test_none_as_input_means_no_input(processors):
    @processors.register("nothing", input=None)
    def nothing(job: RunningJob[Any]) -> None: ...

    assert accepts(nothing, None)
    assert not accepts(nothing, 1)


def test_annotations_may_be_strings(processors):
    @processors.register("texts")
    def texts(job: "RunningJob[Charge]") -> "Receipt": ...

    assert accepts(texts, Charge(1))
    assert not accepts(texts, "x")
    assert not returns(texts, "x")


def test_an_undefined_annotation_is_an_error_that_names_the_remedy(processors):
    with pytest.raises(RegistryError, match=r"The annotations of .*ghost cannot be read.*pass input= and output="):

        @processors.register("ghost")
        def ghost(job: "RunningJob[Ghost]") -> None: ...  # type: ignore[name-defined] # noqa: F821


def test_an_annotation_that_cannot_be_checked_is_refused(processors):
    class Opaque: ...

    with pytest.raises(RegistryError, match="Opaque cannot be an input or output"):

        @processors.register("opaque")
        def opaque(job: RunningJob[Opaque]) -> None: ...


async def later(job: RunningJob[Charge]) -> None: ...


class Later:
    async def __call__(self, job: RunningJob[Charge]) -> None: ...

    async def handle(self, job: RunningJob[Charge]) -> None: ...


ASYNC_HANDLERS = pytest.mark.parametrize(
    "handler",
    [later, functools.partial(later), Later(), Later().handle],
    ids=["function", "partial", "object", "method"],
)


@ASYNC_HANDLERS
def test_an_async_handler_is_recognized(processors, handler):
    job_type = processors.register("later")(handler)
    assert processors.by_name["later"].is_async
    assert accepts(job_type, Charge(1))
    assert not accepts(job_type, "x")


def test_calling_the_type_of_an_async_handler_returns_its_coroutine(processors):
    @processors.register("later")
    async def later(job: RunningJob[Charge]) -> int:
        return job.input.order_id

    class Job:
        input = Charge(41)

    assert asyncio.run(later(Job())) == 41


@ASYNC_HANDLERS
def test_an_async_handler_cannot_be_atomic(processors, handler):
    with pytest.raises(RegistryError, match=r"mode='atomic' would hold a transaction while it awaits.*job\.acomplete"):
        processors.register("later", mode="atomic")(handler)


def test_a_plain_handler_is_not_async(processors):
    @processors.register("now")
    def now(job: RunningJob[Charge]) -> None: ...

    assert not processors.by_name["now"].is_async


def test_an_async_generator_is_refused(processors):
    async def pages(job: RunningJob[Any]) -> Any:
        yield 1

    with pytest.raises(RegistryError, match="has a 'yield'"):
        processors.register("pages")(pages)


def no_parameter() -> None: ...
def two_parameters(job: RunningJob[Any], other: int) -> None: ...
def a_keyword(*, job: RunningJob[Any]) -> None: ...


@pytest.mark.parametrize("function", [no_parameter, two_parameters, a_keyword])
def test_a_handler_takes_one_argument(processors, function):
    with pytest.raises(RegistryError, match="must take one argument"):
        processors.register("wrong")(function)
    assert list(processors) == []


def with_a_default(job: RunningJob[Charge], retries: int = 3) -> None: ...


class Method:
    def handle(self, job: RunningJob[Charge]) -> None: ...


class Callable_:  # noqa: N801
    def __call__(self, job: RunningJob[Charge]) -> None: ...


@pytest.mark.parametrize(
    "function",
    [with_a_default, Method().handle, functools.partial(with_a_default, retries=1), Callable_()],
    ids=["default", "method", "partial", "object"],
)
def test_a_handler_may_be_any_callable_with_a_job_argument(processors, function):
    charge = processors.register("charge")(function)
    assert accepts(charge, Charge(1))
    assert not accepts(charge, "x")


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_name_is_1_to_200_printable_characters(processors, name):
    with pytest.raises(RegistryError, match="1 to 200 printable characters"):
        JobType(name)
    with pytest.raises(RegistryError, match="1 to 200 printable characters"):
        processors.register(name)(lambda job: None)


def test_a_name_may_be_200_characters_of_any_script():
    assert JobType("ü" * 200).name == "ü" * 200


def later_or_never(error: BaseException) -> bool:
    return False


async def retry_later(error: BaseException) -> bool:
    return True


#: Options of processors, which slices and workers accept too, with the message of the error.
WRONG_POLICIES: list[tuple[dict[str, Any], str]] = [
    ({"backoff": 3}, r"backoff=3 is not a Backoff: pass Backoff\(initial_seconds="),
    ({"backoff": Backoff}, r"backoff=<class .* is not a Backoff"),
    ({"backoff": lambda failures: 3}, r"backoff=<function .* must take two arguments, the number of failures and"),
    ({"backoff": retry_later}, r"backoff=<function .* pass a plain function that takes two arguments"),
    ({"lease": 0}, "lease=0 is not a length of time"),
    ({"lease": Backoff()}, r"lease=Backoff\(.* is not a length of time"),
    ({"max_attempts": 0}, "max_attempts=0 is not a whole number from 1 to 2147483647, or math.inf for no limit"),
    ({"timeout": "5m"}, "timeout='5m' is not a length of time .*, or math.inf for no limit"),
    ({"retention": timedelta(days=30)}, r"retention=.* is not a Retention: pass Retention\(completed="),
    ({"queue": ""}, "queue='' is not a name: pass 1 to 100 printable characters"),
]
WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    *WRONG_POLICIES,
    ({"mode": "eager"}, "mode='eager' is not one of 'staged', 'atomic'"),
    ({"entry": "no"}, "entry='no' is not one of True, False"),
    ({"on_blocker_failure": "stop"}, "on_blocker_failure='stop' is not one of 'wait', 'fail', 'run'"),
    ({"continues_with": 5}, "continues_with=5: pass a list of job types or their names"),
    ({"continues_with": ["a", 5]}, r"continues_with=\['a', 5\]: pass a list of job types or their names"),
    ({"continues_with": later_or_never}, "continues_with=<function"),
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


def named(value: object) -> str:
    """Return an id without addresses, which would differ between the processes of a parallel run."""
    options = value.items() if isinstance(value, dict) else ()
    return ", ".join(f"{name}={repr(option).partition(' at 0x')[0]:.40}" for name, option in options)


@pytest.mark.parametrize(("options", "words"), WRONG_OPTIONS, ids=named)
def test_an_invalid_option_is_an_error_that_names_the_type(processors, options, words):
    with pytest.raises(InvalidDeclaration, match=rf"(?s)^Job type 'shop\.wrong': .*{words}") as caught:
        processors.register("shop.wrong", **options)(lambda job: None)
    assert caught.value.type_name == "shop.wrong"
    assert list(processors) == []


def test_invalid_options_of_a_slice_are_errors():
    for options, words in WRONG_POLICIES:
        with pytest.raises(RegistryError, match=rf"^Processors\(\): .*{words}"):
            Processors(**options)


def test_invalid_options_of_a_worker_are_errors():
    for options, words in WRONG_POLICIES:
        if not options.keys() & {"retention", "queue"}:
            with pytest.raises(ImproperlyConfigured, match=rf"^Worker\(\): .*{words}"):
                Worker(registry=Registry(), **options)


def test_invalid_options_of_a_declared_type_are_errors():
    with pytest.raises(InvalidDeclaration, match=r"^Job type 'shop\.wrong': blockers=5: pass a list of job types"):
        JobType("shop.wrong", blockers=5)


def test_register_without_parentheses_is_an_error(processors):
    """Otherwise the function would not become a job type, without any message."""
    with pytest.raises(RegistryError, match=r"@processors\.register\('app\.name'\)"):

        @processors.register
        def charge(job: RunningJob[Charge]) -> None: ...


@pytest.mark.parametrize(
    ("fail_on", "kinds"),
    [
        (OSError, (OSError,)),
        ([OSError, KeyError], (OSError, KeyError)),
        ((OSError,), (OSError,)),
        ({OSError}, (OSError,)),
        ((kind for kind in [OSError]), (OSError,)),
        ([], ()),
        (None, ()),
    ],
)
def test_fail_on_is_one_exception_class_or_several(processors, fail_on, kinds):
    processors.register("shop.charge", fail_on=fail_on)(lambda job: None)
    assert processors.by_name["shop.charge"].retry.fail_on == kinds


@pytest.mark.parametrize("lease", [Lease(30), 30, 30.0, timedelta(seconds=30)], ids=repr)
def test_a_lease_may_be_a_number_or_a_timedelta(lease):
    part = Processors(lease=lease)
    part.register("shop.charge", lease=lease)(lambda job: None)
    assert [policy.lease for policy in part.by_name["shop.charge"].policies] == [Lease(30), Lease(30)]


@pytest.mark.parametrize("names", ["shop.next", ["shop.next"], ("shop.next",), {"shop.next"}, JobType("shop.next")])
def test_continuations_and_blockers_are_one_type_or_several(processors, names):
    charge = processors.register("shop.charge", continues_with=names, blockers=names)(lambda job: None)
    assert charge.continues_with == charge.blockers == {"shop.next"}


def test_max_attempts_may_be_infinite(processors):
    processors.register("shop.charge", max_attempts=math.inf)(lambda job: None)
    assert processors.by_name["shop.charge"].policies[0].max_attempts == math.inf


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
    called: list[str] = []
    signal.on_abort(lambda: called.append("before"))
    signal.raise_if_aborted()
    assert not signal.wait(0)
    signal.abort("cancelled")
    signal.abort("error")
    signal.on_abort(lambda: called.append("after"))
    assert (signal.aborted, signal.reason, signal.wait(0)) == (True, "cancelled", True)
    assert called == ["before", "after"]


def test_an_unknown_argument_of_register_is_an_error_that_names_it(processors):
    options: dict[str, Any] = {"max_attempt": 3}
    with pytest.raises(TypeError, match=r"^register\(\) does not take the argument max_attempt\. It takes input, "):
        processors.register("misspelt", **options)
