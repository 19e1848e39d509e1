"""``LogContext`` adds the fields of the running job to every log record of every logger."""

import asyncio
import json
import logging
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_jobchains import context
from django_jobchains.exceptions import RegistryError
from django_jobchains.middleware import LogContext, Middleware
from tests.middleware.recording import processors_with
from tests.support.attempts import committed

pytestmark = committed

FIELDS = ("job_id", "chain_id", "job_type", "attempt")


class RecordingHandler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []
        self.formatter = logging.Formatter("%(job_type)s %(job_id)s %(attempt)s %(message)s")

    def emit(self, record):
        self.format(record)
        self.records.append(record)

    def fields(self):
        return [tuple(getattr(record, name) for name in FIELDS) for record in self.records]


@pytest.fixture
def recorded():
    handler, logger = RecordingHandler(), logging.getLogger("tests.middleware")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


logger = logging.getLogger("tests.middleware.somewhere")


def test_every_record_of_an_attempt_has_the_fields_of_its_job(work, recorded):
    processors = processors_with(LogContext())

    @processors.register("talks")
    def talks(job):
        logger.info("in the handler")
        with job.prepare():
            logger.info("in prepare")
        with job.complete():
            logger.info("in complete")

    chain = talks.enqueue()
    work(processors)
    assert recorded.fields() == [(str(chain.id), str(chain.id), "talks", 1)] * 3


def test_records_outside_of_attempts_have_empty_fields(recorded):
    LogContext()
    logger.info("from elsewhere")
    assert recorded.fields() == [("", "", "", "")]
    assert recorded.format(recorded.records[0]) == "   from elsewhere"


def test_concurrent_attempts_have_their_own_fields(work, recorded):
    processors = processors_with(LogContext())
    together = threading.Barrier(3)

    @processors.register("talks")
    def talks(job):
        together.wait(20)
        logger.info("%s", job.id)
        together.wait(20)
        logger.info("%s", job.id)

    for _ in range(3):
        talks.enqueue()
    work(processors, slots=3)
    assert len(recorded.records) == 6
    for record in recorded.records:
        assert record.getMessage() == record.job_id


def test_fields_are_removed_after_the_attempt(work, recorded):
    class Around(Middleware):
        @contextmanager
        def around_handler(self, job) -> Iterator[None]:
            try:
                yield
            finally:
                logger.info("after the attempt")

    logging_, plain = processors_with(Around(), LogContext()), processors_with()

    @logging_.register("fails")
    def fails(job):
        raise RuntimeError("declined")

    @plain.register("plain")
    def after(job):
        logger.info("of other processors")

    fails.enqueue()
    after.enqueue()
    work(logging_, plain, slots=1)
    assert recorded.fields() == [("", "", "", "")] * 2


def test_values_of_the_context_can_be_fields(work, recorded):
    processors = processors_with(LogContext("tenant", "request_id"))

    @processors.register("talks")
    def talks(job):
        logger.info("in the handler")

    with context.bound(tenant="acme"):
        talks.enqueue()
    work(processors)
    logger.info("from elsewhere")
    assert [(r.tenant, r.request_id) for r in recorded.records] == [("acme", ""), ("", "")]


@pytest.mark.parametrize("value", ["acme\r\nERROR forged\u2028\x1b[31m", ["acme\nERROR forged"]])
def test_value_cannot_forge_a_log_line(work, recorded, value):
    processors = processors_with(LogContext("tenant"))

    @processors.register("talks")
    def talks(job):
        logger.info("in the handler")

    with context.bound(tenant=value):
        talks.enqueue()
    work(processors)
    (record,) = recorded.records
    line = logging.Formatter("%(tenant)s %(message)s").format(record)
    assert line.isprintable()
    assert "acme" in line


def test_records_of_async_code_have_the_fields(work, recorded):
    processors = processors_with(LogContext())

    @processors.register("talks")
    def talks(job):
        async def log():
            await asyncio.sleep(0)
            logger.info("in a task")
            await sync_to_async(logger.info)("in a thread")

        async_to_sync(log)()

    chain = talks.enqueue()
    work(processors)
    assert recorded.fields() == [(str(chain.id), str(chain.id), "talks", 1)] * 2


def test_extra_takes_precedence(work, recorded):
    processors = processors_with(LogContext())

    @processors.register("talks")
    def talks(job):
        logger.info("mine", extra={"job_id": "mine", "attempt": 7})

    talks.enqueue()
    logger.info("elsewhere", extra={"job_type": "x"})
    work(processors)
    assert [(r.job_id, r.attempt, r.job_type) for r in recorded.records] == [
        ("", "", "x"),
        ("mine", 7, "talks"),
    ]


def test_reserved_names_in_extra_are_still_refused():
    LogContext()
    with pytest.raises(KeyError, match="Attempt to overwrite"):
        logger.warning("wrong", extra=dict.fromkeys(["levelname"]))


def test_records_can_be_pickled_copied_and_written_as_json(recorded):
    LogContext()
    logger.info("one")
    record = recorded.records[0]
    pickled = pickle.dumps(record)
    assert pickle.loads(pickled).job_id == ""
    assert b"jobchains" not in pickled.replace(
        record.pathname.encode(), b""
    )  # so that it can be unpickled without the library
    assert json.loads(json.dumps(vars(record)))["job_id"] == ""


def test_log_record_factory_is_replaced_once():
    LogContext()
    factory = logging.getLogRecordFactory()
    LogContext("tenant")
    assert logging.getLogRecordFactory() is factory


@pytest.mark.parametrize("name", ["message", "job_id", "levelname", "args", "no name", "", 3])
def test_invalid_field_names_are_refused(name):
    with pytest.raises(RegistryError, match="cannot have a field of this name"):
        LogContext(name)
