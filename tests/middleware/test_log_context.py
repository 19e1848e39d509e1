"""``LogContext`` adds the fields of the running job to every log record of every logger."""

import asyncio
import json
import logging
import pickle
import threading
from contextlib import contextmanager

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_jobchains import context
from django_jobchains.exceptions import RegistryError
from django_jobchains.middleware import LogContext, Middleware
from tests.middleware.recording import processors_with
from tests.support.attempts import committed
from tests.support.scenario import RECORDS, complete, kinds, outside

pytestmark = committed

FIELDS = ("job_id", "chain_id", "job_type", "attempt")
logger = logging.getLogger("tests.middleware.somewhere")


class RecordingHandler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []
        self.formatter = logging.Formatter("%(job_type)s %(job_id)s %(attempt)s %(message)s")

    def emit(self, record):
        self.format(record)
        self.records.append(record)

    def fields(self, names=FIELDS):
        return [tuple(getattr(record, name) for name in names) for record in self.records]


@pytest.fixture
def recorded():
    handler, parent = RecordingHandler(), logging.getLogger("tests.middleware")
    before = parent.level
    parent.addHandler(handler)
    parent.setLevel(logging.INFO)
    yield handler
    parent.removeHandler(handler)
    parent.setLevel(before)


@kinds("plain", "async", "batch", *RECORDS)
def test_every_record_of_an_attempt_has_the_fields_of_its_job(scenario, recorded):
    """Those of a batch have only what its jobs have in common."""

    def talks(jobs):
        logger.info("in the handler")
        yield outside(lambda: logger.info("on a thread"))
        yield complete(lambda: logger.info("in complete"))

    scenario = scenario.with_middleware(LogContext())
    first, *_ = scenario.enqueue(talks)
    scenario.run()
    id_ = str(first.id)
    fields = {"batch": ("", "", "scenario", "")}.get(scenario.kind, (id_, id_, "scenario", 1))
    if scenario.kind in RECORDS:
        fields = (id_, "", "records.export", 1)
    assert recorded.fields() == [fields] * 3


def test_records_outside_of_attempts_have_empty_fields(recorded):
    LogContext()
    logger.info("from elsewhere")
    assert recorded.fields() == [("", "", "", "")]
    assert recorded.format(recorded.records[0]) == "   from elsewhere"


@pytest.mark.parametrize("is_async", [False, True])
def test_concurrent_attempts_have_their_own_fields(work, recorded, is_async):
    processors = processors_with(LogContext())
    together, all_arrived, arrived = threading.Barrier(3), asyncio.Event(), []

    def talks(job):
        for _ in range(2):
            together.wait(20)
            logger.info("%s", job.id)

    async def atalks(job):
        arrived.append(job)
        if len(arrived) == 3:
            all_arrived.set()
        await all_arrived.wait()
        for _ in range(2):
            await asyncio.sleep(0)
            logger.info("%s", job.id)

    job_type = processors.register("talks")(atalks if is_async else talks)
    for _ in range(3):
        job_type.enqueue()
    work(processors, slots=3)
    assert len(recorded.records) == 6
    for record in recorded.records:
        assert record.getMessage() == record.job_id


def test_fields_are_removed_after_the_attempt(work, recorded):
    class Around(Middleware):
        @contextmanager
        def around_handler(self, job):
            try:
                yield
            finally:
                logger.info("after the attempt")

    logging_, plain = processors_with(Around(), LogContext()), processors_with()

    @logging_.register("fails")
    def fails(job):
        raise RuntimeError("declined")

    fails.enqueue()
    plain.register("plain")(lambda job: logger.info("of other processors")).enqueue()
    work(logging_, plain, slots=1)
    assert recorded.fields() == [("", "", "", "")] * 2


@pytest.fixture
def talk(work, recorded):
    """Return a function that logs in a handler whose job has this context."""

    def talk(middleware, function=lambda: logger.info("in the handler"), **values):
        processors = processors_with(middleware)
        talks = processors.register("talks")(lambda job: function())
        with context.bound(**values):
            chain = talks.enqueue()
        work(processors)
        return chain

    return talk


def test_values_of_the_context_can_be_fields(talk, recorded):
    talk(LogContext("tenant", "request_id"), tenant="acme")
    logger.info("from elsewhere")
    assert recorded.fields(["tenant", "request_id"]) == [("acme", ""), ("", "")]


@pytest.mark.parametrize("value", ["acme\r\nERROR forged\u2028\x1b[31m", ["acme\nERROR forged"]])
def test_value_cannot_forge_a_log_line(talk, recorded, value):
    talk(LogContext("tenant"), tenant=value)
    [record] = recorded.records
    line = logging.Formatter("%(tenant)s %(message)s").format(record)
    assert (line.isprintable(), "acme" in line) == (True, True)


def test_records_of_async_code_have_the_fields(talk, recorded):
    async def log():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(logger.info, "in a task"))
        await sync_to_async(logger.info)("in a thread")

    chain = talk(LogContext(), async_to_sync(log))
    assert recorded.fields() == [(str(chain.id), str(chain.id), "talks", 1)] * 2


def test_extra_takes_precedence_unless_its_name_is_reserved(talk, recorded):
    logger.info("elsewhere", extra={"job_type": "x"})
    talk(LogContext(), lambda: logger.info("mine", extra={"job_id": "mine", "attempt": 7}))
    assert recorded.fields(["job_id", "attempt", "job_type"])[1:] == [("mine", 7, "talks")]
    with pytest.raises(KeyError, match="Attempt to overwrite"):
        logger.warning("wrong", extra=dict.fromkeys(["levelname"]))


def test_records_can_be_pickled_copied_and_written_as_json(recorded):
    LogContext()
    logger.info("one")
    [record] = recorded.records
    pickled = pickle.dumps(record)
    assert pickle.loads(pickled).job_id == ""
    # It can be unpickled without the library.
    assert b"jobchains" not in pickled.replace(record.pathname.encode(), b"")
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
