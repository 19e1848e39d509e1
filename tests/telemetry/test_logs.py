"""The recipes of the guide: log records of jobs as JSON, with the ids of their traces."""

import io
import json
import logging
import logging.config
import re
from pathlib import Path

import pytest
from opentelemetry.instrumentation.logging import LoggingInstrumentor

from django_jobchains.middleware import LogContext
from django_jobchains.processors import FailJob, Processors
from tests.support.attempts import committed
from tests.support.scenario import kinds
from tests.support.tracing import trace_of

pytestmark = committed

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "observability.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def formatter_of(name):
    """Return the formatter of the recipe in the guide."""
    namespace = {}
    exec(next(block for block in reversed(BLOCKS) if name in block), namespace)
    if name == "JSONFormatter":
        return namespace["JSONFormatter"]()
    if name == "ProcessorFormatter":
        return namespace["formatter"]
    configured = logging.config.DictConfigurator(namespace["LOGGING"])
    return configured.configure_formatter(namespace["LOGGING"]["formatters"]["json"])


@pytest.mark.parametrize("name", ["JsonFormatter", "JSONFormatter", "ProcessorFormatter"])
def test_a_recipe_writes_the_job_its_error_and_its_trace(name, recorded, registry, make_worker):
    part = Processors(middleware=[LogContext()])
    registry.add(part)

    @part.register("ship")
    def ship(job):
        logging.getLogger("shop").error("packed %s", "a parcel")
        raise FailJob("no label")

    handler = logging.StreamHandler(stream := io.StringIO())
    LoggingInstrumentor().instrument(tracer_provider=recorded.tracers, set_logging_format=True)
    handler.setFormatter(formatter_of(name))
    logging.getLogger().handlers.insert(0, handler)  # Others add a ``message`` to the records that they format.
    try:
        chain = ship.enqueue()
        make_worker().run_until_idle()
    finally:
        logging.getLogger().removeHandler(handler)
        LoggingInstrumentor().uninstrument()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    packed, ended = (line for line in lines if line.get("job_id") == str(chain.id))
    assert (packed["message"], packed["job_type"]) == ("packed a parcel", "ship")
    assert packed["otelTraceID"] == format(trace_of(recorded.one("process ship")), "032x")
    assert (ended["message"][:15], ended["jobchains"]["ending"]) == ("attempt ended: ", "failed")
    assert any('raise FailJob("no label")' in value for value in ended.values() if isinstance(value, str))


@kinds("plain", "batch", "record")
def test_the_log_record_of_a_failed_attempt_has_the_fields_of_log_context(scenario, caplog):
    def fails(jobs):
        raise RuntimeError("no paper")
        yield

    scenario = scenario.with_middleware(LogContext())
    first, *_ = scenario.enqueue(fails)
    scenario.run()
    [record] = [record for record in caplog.records if record.job_id == str(first.id)]
    fields = ("", "records.export") if scenario.kind == "record" else (str(first.id), "scenario")
    assert (record.event, record.chain_id, record.job_type, record.attempt) == ("AttemptEnded", *fields, 1)
