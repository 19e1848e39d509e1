"""Which job a log record belongs to, on every record of every logger."""

import asyncio
import json
import logging
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_jobchains import context
from django_jobchains.exceptions import RegistryError
from django_jobchains.middleware import LogContext, Middleware
from django_jobchains.processors import RunningJob
from tests.attempts.work import Work, committed
from tests.middleware.recording import slice_with

pytestmark = committed

FIELDS = ("job_id", "chain_id", "job_type", "attempt")


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.formatter = logging.Formatter("%(job_type)s %(job_id)s %(attempt)s %(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)
        self.records.append(record)

    def fields(self) -> list[tuple[Any, ...]]:
        return [tuple(getattr(record, name) for name in FIELDS) for record in self.records]


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, logger = Kept(), logging.getLogger("tests.middleware")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


logger = logging.getLogger("tests.middleware.somewhere")


def test_every_record_of_the_attempt_says_which_job_it_is_about(work: Work, kept: Kept) -> None:
    processors = slice_with(LogContext())

    @processors.register("talks")
    def talks(job: RunningJob[Any]) -> None:
        logger.info("in the handler")
        with job.prepare():
            logger.info("in prepare")
        with job.complete():
            logger.info("in complete")

    chain = talks.enqueue()
    work(processors)
    assert kept.fields() == [(str(chain.id), str(chain.id), "talks", 1)] * 3


def test_records_outside_an_attempt_have_the_fields_empty(kept: Kept) -> None:
    LogContext()
    logger.info("from elsewhere")
    assert kept.fields() == [("", "", "", "")]
    assert kept.format(kept.records[0]) == "   from elsewhere"


def test_attempts_at_the_same_time_do_not_mix(work: Work, kept: Kept) -> None:
    processors = slice_with(LogContext())
    together = threading.Barrier(3)

    @processors.register("talks")
    def talks(job: RunningJob[Any]) -> None:
        together.wait(20)
        logger.info("%s", job.id)
        together.wait(20)
        logger.info("%s", job.id)

    for _ in range(3):
        talks.enqueue()
    work(processors, slots=3)
    assert len(kept.records) == 6
    for record in kept.records:
        assert record.getMessage() == record.job_id  # type: ignore[attr-defined]


def test_it_ends_with_the_attempt_on_the_same_thread(work: Work, kept: Kept) -> None:
    class Around(Middleware):
        @contextmanager
        def around_handler(self, job: RunningJob[Any]) -> Iterator[None]:
            try:
                yield
            finally:
                logger.info("around it")

    talking, plain = slice_with(Around(), LogContext()), slice_with()

    @talking.register("fails")
    def fails(job: RunningJob[Any]) -> None:
        raise RuntimeError("declined")

    @plain.register("plain")
    def after(job: RunningJob[Any]) -> None:
        logger.info("of another slice")

    fails.enqueue()
    after.enqueue()
    work(talking, plain, slots=1)
    assert kept.fields() == [("", "", "", "")] * 2


def test_what_is_bound_can_be_a_field(work: Work, kept: Kept) -> None:
    processors = slice_with(LogContext("tenant", "request_id"))

    @processors.register("talks")
    def talks(job: RunningJob[Any]) -> None:
        logger.info("in the handler")

    with context.bound(tenant="acme"):
        talks.enqueue()
    work(processors)
    logger.info("from elsewhere")
    assert [(r.tenant, r.request_id) for r in kept.records] == [("acme", ""), ("", "")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", ["acme\r\nERROR forged\u2028\x1b[31m", ["acme\nERROR forged"]])
def test_a_value_cannot_forge_a_line_of_the_log(work: Work, kept: Kept, value: Any) -> None:
    processors = slice_with(LogContext("tenant"))

    @processors.register("talks")
    def talks(job: RunningJob[Any]) -> None:
        logger.info("in the handler")

    with context.bound(tenant=value):
        talks.enqueue()
    work(processors)
    (record,) = kept.records
    line = logging.Formatter("%(tenant)s %(message)s").format(record)
    assert line.isprintable()
    assert "acme" in line


def test_it_follows_async_code(work: Work, kept: Kept) -> None:
    processors = slice_with(LogContext())

    @processors.register("talks")
    def talks(job: RunningJob[Any]) -> None:
        async def say() -> None:
            await asyncio.sleep(0)
            logger.info("in a task")
            await sync_to_async(logger.info)("in a thread")

        async_to_sync(say)()

    chain = talks.enqueue()
    work(processors)
    assert kept.fields() == [(str(chain.id), str(chain.id), "talks", 1)] * 2


def test_an_extra_of_ones_own_counts_more_and_is_no_error(work: Work, kept: Kept) -> None:
    processors = slice_with(LogContext())

    @processors.register("talks")
    def talks(job: RunningJob[Any]) -> None:
        logger.info("mine", extra={"job_id": "mine", "attempt": 7})

    talks.enqueue()
    logger.info("elsewhere", extra={"job_type": "x"})
    work(processors)
    assert [(r.job_id, r.attempt, r.job_type) for r in kept.records] == [  # type: ignore[attr-defined]
        ("", "", "x"),
        ("mine", 7, "talks"),
    ]


def test_an_extra_that_logging_itself_refuses_is_refused_still() -> None:
    LogContext()
    with pytest.raises(KeyError, match="Attempt to overwrite"):
        logger.warning("wrong", extra=dict.fromkeys(["levelname"]))


def test_records_can_be_pickled_copied_and_written_as_json(kept: Kept) -> None:
    LogContext()
    logger.info("one")
    record = kept.records[0]
    pickled = pickle.dumps(record)
    assert pickle.loads(pickled).job_id == ""
    assert b"jobchains" not in pickled.replace(record.pathname.encode(), b"")  # it is read where the library is not
    assert json.loads(json.dumps(vars(record)))["job_id"] == ""


def test_it_is_installed_once_over_the_factory_that_was_there() -> None:
    LogContext()
    factory = logging.getLogRecordFactory()
    LogContext("tenant")
    assert logging.getLogRecordFactory() is factory


@pytest.mark.parametrize("name", ["message", "job_id", "levelname", "args", "no name", "", 3])
def test_a_name_that_a_record_cannot_have_is_refused(name: Any) -> None:
    with pytest.raises(RegistryError, match="cannot have a field of this name"):
        LogContext(name)
