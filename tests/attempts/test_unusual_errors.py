"""Whatever a handler raises or returns, its job is retried, other jobs run, and the worker continues."""

import asyncio
import os
import signal
import sys
import threading
from contextlib import contextmanager
from itertools import product

import pytest
from django.db import transaction

from django_jobchains.exceptions import FailJob, RescheduleJob
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.telemetry.events import ThreadFailed
from tests.middleware.recording import AllHooks
from tests.support.attempts import committed
from tests.support.scenario import JOBS, RECORDS, complete, effect, effects, kinds, outside, prepare, write

pytestmark = committed

MAX_BYTES = 64 * 1024
ERRORS = [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, asyncio.CancelledError, BaseException]
PLACES = ["handler", "prepare", "complete", "after complete", "outside"]


@kinds("plain", "async")
def test_error_that_is_not_an_exception_ends_only_the_attempt(scenario, events):
    def raises(jobs):
        place, error = PLACES[jobs[0].input[0]], ERRORS[jobs[0].input[1]]
        if place == "outside":
            yield outside(lambda: write([], "", error())())
        elif place == "prepare":
            yield prepare(write(jobs, "half", error()))
        elif place != "handler":
            yield complete(write(jobs, "half", error() if place == "complete" else None))
        raise error

    inputs = [list(row) for row in product(range(len(PLACES)), range(len(ERRORS)))]
    scenario.enqueue(raises, inputs=inputs)
    scenario.run()
    for job in Job.objects.all():
        assert job.status == "pending", job.input
        assert ERRORS[job.input[1]].__name__ in job.last_error, job.input
    assert FailedAttempt.objects.count() == len(inputs)
    assert (effects(), events.of(ThreadFailed)) == ([], [])


@kinds("batch", *RECORDS)
@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), MemoryError()])
def test_error_of_a_batch_or_a_record_that_is_not_an_exception_ends_only_the_attempt(scenario, events, error):
    def raises(jobs):
        yield complete(write(jobs, "half"))
        raise error

    scenario.enqueue(raises)
    scenario.run()
    [stored] = scenario.errors()
    assert (scenario.states(), stored.startswith(type(error).__name__), effects()) == ({"retried"}, True, [])
    assert events.of(ThreadFailed) == []


def fork(leave):
    """Fork a process that leaves the handler in this way, and return its exit code."""
    pid = os.fork()
    if not pid:
        return leave()
    deadline = threading.Timer(20, os.kill, [pid, signal.SIGKILL])
    deadline.start()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    deadline.cancel()
    return code


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@kinds(*JOBS, *RECORDS)
@pytest.mark.parametrize("leave", [lambda: None, lambda: 1 / 0, sys.exit], ids=["returns", "raises", "exits"])
@pytest.mark.parametrize("place", ["handler", "complete"])
def test_a_forked_process_that_leaves_the_handler_ends_before_hooks_and_statements(scenario, place, leave):
    codes, parent = [], os.getpid()

    class Hooks(AllHooks):
        @contextmanager
        def around(self, phase, job):
            try:
                yield
            finally:
                if phase == "handler" and os.getpid() != parent:
                    os._exit(2)

    def forks(jobs):
        if place == "handler":
            codes.append(fork(leave))
        else:
            yield complete(lambda: (write(jobs, "written")(), codes.append(fork(leave))))

    scenario = scenario.with_middleware(Hooks())
    scenario.enqueue(forks)
    scenario.run()
    assert (codes, scenario.states()) == ([1], {"completed"})
    assert effects() == ([] if place == "handler" else ["written"])


class UnreadableMessage(Exception):
    def __str__(self):
        raise ValueError("no words")


class ExitingMessage(Exception):
    def __str__(self):
        raise SystemExit(3)


class UnformattableText(str):
    __slots__ = ()

    def __format__(self, spec):
        raise ValueError("no format")


class UnformattableMessage(Exception):
    def __str__(self):
        return UnformattableText("text")


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("kept")
        self.lock = threading.Lock()

    def __reduce__(self):
        raise TypeError("never")


class NoNotes(Exception):
    def add_note(self, note):
        raise TypeError("never")


def its_own_cause():
    error = ValueError("round and round")
    error.__cause__ = error
    return error


@pytest.fixture
def run_beside_others(processors, work):
    """Return a function that runs a handler between jobs that complete, and returns its failed attempt."""
    other = processors.register("other")(lambda job: "fine")

    def run(handler):
        job_type = processors.register("raises")(handler)
        before = [other.enqueue(priority=1) for _ in range(3)]
        chain = job_type.enqueue()
        after = [other.enqueue(priority=-1) for _ in range(3)]
        work()
        [job] = chain.refresh().jobs
        [failed] = job.failed_attempts.all()
        assert [other.refresh().output for other in before + after] == ["fine"] * 6
        assert (job.status, job.attempt, job.leased_by) == ("pending", 1, None)
        assert job.last_error == failed.error
        return failed

    return run


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UnreadableMessage(), "UnreadableMessage: <its message could not be read: ValueError>"),
        (ExitingMessage(), "ExitingMessage: <its message could not be read: SystemExit>"),
        (UnformattableMessage(), "UnformattableMessage: text"),
        (Unpicklable(), "Unpicklable: kept"),
        (NoNotes("noted"), "NoNotes: noted"),
        (StopIteration("no more"), "StopIteration: no more"),
        (ValueError("before\0after"), "ValueError: before\ufffdafter"),
        (ValueError("half \ud83d a pair"), "ValueError: half \ufffd a pair"),
        (ValueError("whole \U0001f642 ä 你"), "ValueError: whole \U0001f642 ä 你"),
        (ValueError("many\nlines\r\nand \x1b[31mcolours"), "ValueError: many\nlines\r\nand \x1b[31mcolours"),
        (ExceptionGroup("several", [ValueError("one"), KeyError("two")]), "ExceptionGroup: several (2 sub-exceptions)"),
        (its_own_cause(), "ValueError: round and round"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_message_is_recorded(run_beside_others, error, text):
    def handler(job):
        raise error

    failed = run_beside_others(handler)
    assert failed.error == text
    assert "in handler" in failed.traceback
    assert "\0" not in failed.traceback


def test_a_traceback_begins_with_the_handler(run_beside_others):
    def handler(job):
        try:
            {}["absent"]
        except KeyError as error:
            raise ValueError("no luck") from error

    traceback = run_beside_others(handler).traceback
    frames = [line for line in traceback.splitlines() if line.startswith("  File ")]
    assert [frame.rpartition(" ")[2] for frame in frames] == ["handler", "handler"]


def leave_a_transaction_open(job):
    transaction.set_autocommit(False)


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (lambda job: b"no JSON", "InvalidOutput: Output of 'raises': at $: bytes is not JSON"),
        (lambda job: [job.continue_with("other")], "PhaseError: job.continue_with(…) must be returned"),
        (leave_a_transaction_open, "TransactionLeftOpen: "),
    ],
)
def test_an_error_about_what_the_handler_left_behind_has_no_frames_of_this_package(run_beside_others, handler, error):
    failed = run_beside_others(handler)
    assert failed.error.startswith(error)
    assert failed.traceback == f"django_jobchains.exceptions.{failed.error}\n"


@pytest.mark.slow
@pytest.mark.parametrize("letter", ["x", "ä", "\U0001f642", "\0"])
def test_message_of_10_mb_is_cut_in_the_middle(run_beside_others, letter):
    def handler(job):
        raise ValueError("the head" + letter * 10_000_000 + "the tail")

    failed = run_beside_others(handler)
    for text in (failed.error, failed.traceback):
        assert len(text.encode()) <= MAX_BYTES
        assert text.rstrip().endswith("the tail")
    assert failed.error.startswith("ValueError: the head")
    assert "characters omitted" in failed.error


@pytest.mark.parametrize("in_complete", [False, True])
def test_endless_recursion_ends_the_attempt(run_beside_others, in_complete):
    def deeper(job):
        deeper(job)

    def handler(job):
        if in_complete:
            with job.complete():
                effect(job)
                deeper(job)
        deeper(job)

    assert run_beside_others(handler).error.startswith("RecursionError: maximum recursion depth")
    assert effects() == []


@kinds(*JOBS)
@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (FailJob("no use"), "failed", "FailJob: no use"),
        (RescheduleJob(delay=3600, reason="not yet"), "waiting", "not yet"),
        (ExceptionGroup("several", [ValueError("one")]), "retried", "ExceptionGroup: several (1 sub-exception)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_determines_the_outcome(scenario, error, state, text):
    def handler(jobs):
        yield outside(lambda: None)
        raise error

    scenario.enqueue(handler)
    scenario.run()
    assert (scenario.states(), scenario.errors()) == ({state}, {text})
