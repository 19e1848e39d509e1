"""Writes docs/reference/telemetry.md from the code: ``python -m tests.telemetry.reference``."""

import inspect
from dataclasses import fields
from pathlib import Path

from django_jobchains.telemetry import events, names
from django_jobchains.telemetry.events import DetailEvent, Event

FILE = Path(__file__).parents[2] / "docs" / "reference" / "telemetry.md"

HEAD = """\
# Telemetry

This page lists the events, spans, metrics and attributes. [See what your jobs do](../guides/observability.md) shows how
to use them. The page is generated from the code, and the names in it only change with an entry in the changelog.
"""

SINKS = """\
## Events

```python
from django_jobchains.telemetry import add_sink, events


def count_failures(event: events.Event) -> None:
    if isinstance(event, events.AttemptEnded) and event.ending == "failed":
        ...


add_sink(count_failures)
```

A sink is a function that takes an event. It is called in the thread that reports the event, after the commit, and
should return quickly. An error in a sink is logged and has no other effect. `remove_sink` removes it.

Events are frozen dataclasses of `django_jobchains.telemetry.events`. They contain no payloads, but `error`, `exception`
and `stack` may quote them: pass these through `django_jobchains.text.redaction.redacted_text` before you send them
anywhere. `worker` is the id of the worker, or empty outside of workers. All events in the first table are also logged
to the logger `django_jobchains`.

Events about attempts have a field `kind`, which is `job` or `record`. If it is `record`, `job_id` is the primary key of
the record as text, `type_name` is the name of its worker, and `chain_id` is None. Log messages show `kind` only for
records.
"""

DETAILS = """\
There may be thousands of the following events per second. They are only created for sinks that ask for them:
`add_sink(sink, events.JobCreated, events.ChainEnded)`, or `add_sink(sink, events.DetailEvent)` for all of them. They
are not logged.
"""

LIMITS = """\
Attributes have few values, and never contain an id or the name of a worker. If an attribute has more than 500 values,
further ones are reported as `_OTHER`.

Counters count all events, and `messaging.client.operation.duration` records all operations. The histograms about
attempts, chains and hooks record about 20 durations of each kind per second. Each type and outcome has an even share of
them, and at least the first one in each second. Therefore, quantiles and means of one type and outcome are correct, but
those of several types or outcomes give too much weight to rare ones. Group histograms by type and outcome, and use
counters for rates.

With `register_gauges`, a process without a worker, such as a web server, exports the gauges that have the attribute
`jobchains.database.alias`. The other gauges are only known to processes with a worker, `jobchains.blocked.stranded` and
`jobchains.notifier.connected` included.
"""

MESSAGE = (
    names.MESSAGING_SYSTEM,
    names.QUEUE,
    names.JOB_ID,
    names.CHAIN_ID,
    names.OPERATION,
    names.OPERATION_TYPE,
    names.JOB_TYPE,
)
#: Each span with its kind, when there is one, its parent, and its attributes.
SPANS = (
    (
        "send {type}",
        "PRODUCER",
        "A job is created. It ends with the commit, and is not exported after a rollback.",
        (
            "The caller's span; for a continuation, the attempt or its `complete` phase; for a chain of `on_failure`, "
            "the `send` span of the failed job"
        ),
        (*MESSAGE, names.MESSAGE_COUNT),
    ),
    (
        "process {type}",
        "CONSUMER",
        "An attempt at a job or a record, from its beginning to its end. It is exported when the outcome is written.",
        'The `send` span of the job; none, but a link to it, with `TRACE_PROPAGATION="link"`; none for a record',
        (*MESSAGE, names.ATTEMPT, names.OUTCOME, names.ABANDONED_REASON, names.ERROR_TYPE, names.MESSAGE_COUNT),
    ),
    ("prepare", "INTERNAL", "The block of `job.prepare()`", "The attempt", (names.ERROR_TYPE,)),
    ("complete", "INTERNAL", "The block of `job.complete()`", "The attempt", (names.ERROR_TYPE,)),
    (
        "complete {type}",
        "INTERNAL",
        "A job is completed without a worker. It ends with the commit.",
        "The caller's span, with a link to the `send` span of the job",
        (names.MESSAGING_SYSTEM, names.QUEUE, names.JOB_ID, names.CHAIN_ID, names.JOB_TYPE),
    ),
    (
        "wait {type}",
        "INTERNAL",
        "`chains.wait` and `chains.await_chain`",
        "The caller's span, with a link to the `send` span of the chain's first job",
        (names.MESSAGING_SYSTEM, names.CHAIN_ID, names.JOB_TYPE, names.ERROR_TYPE),
    ),
)

ATTRIBUTES = {
    names.MESSAGING_SYSTEM: f"`{names.SYSTEM}`",
    names.QUEUE: "The queue of the job",
    names.JOB_ID: "The id of the job, or the primary key of the record",
    names.CHAIN_ID: "The id of the chain",
    names.OPERATION: "`send` or `process`; in metrics about the library's own operations their names, such as `claim` "
    "or `finish`, for records `record_dequeue`, `record_heartbeat`, `record_end` and `record_reset`, and for codecs "
    "`encode` and `decode`",
    names.OPERATION_TYPE: "`send` or `process`",
    names.MESSAGE_COUNT: "How many jobs a batch has",
    names.ERROR_TYPE: "The class of the error",
    names.JOB_TYPE: "The type of the job, or the name of the record worker",
    names.ATTEMPT: "The number of the attempt, from 1",
    names.OUTCOME: "`completed`, `continued`, `failed`, `retried`, `rescheduled`, `cancelled`, `abandoned` or "
    "`handed_back`; for records also `errored`, `requeued` and `cancelled`",
    names.ABANDONED_REASON: "Why the attempt could not write its outcome, such as `taken_by_another_worker`",
    names.JOB_STATUS: "`due`, `scheduled`, `blocked` or `running`; for records `due`, `queued` (all that wait, "
    "including due ones), `processing`, `errored` and `failed`",
    names.CHAIN_TYPE: "The type of the chain's first job",
    names.CHAIN_STATUS: "`completed`, `failed`, `cancelled`, or `expired` if a job did not start in time",
    names.SLOT_STATE: "`idle`, `busy` or `stuck`",
    names.SLOT_KIND: "`thread`, `async`, or `process` for a slot that waits for a child process",
    names.SCHEDULE: "The name of the schedule",
    names.LIMIT: "The name of the type, group, record worker or queue with a limit",
    names.LIMIT_KIND: "`type`, `group`, `records` or `queue`",
    names.TICK_OUTCOME: "`fired`, `skipped` or `missed`",
    names.REASON: "Why the attempt was asked to stop or lost its lease, such as `timed_out`",
    names.BACKEND: "The class of the notifier",
    names.HOOK: "`pre_handle` or `post_handle`",
    names.POOL_LEVEL: "The isolation of a pool of child processes: `process` or `transient`",
    names.POOL_KEY: "The key of a pool: see `Isolation`",
    names.POOL_STATE: "`idle` or `busy`",
    names.REQUESTED_LEVEL: "The isolation of the job types",
    names.ACTUAL_LEVEL: "The isolation with which their attempts run",
    names.DATABASE: "The alias of the database that the gauge is about",
    names.THREAD: "The name of a worker's thread, such as `claim-loop`",
    names.PROCESS_OUTCOME: "`exited`, `failed` (by its exit code), `killed`, `not_started` or `not_replaced`",
}


def page():
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]
    details = [kind for kind in kinds if issubclass(kind, DetailEvent) and kind is not DetailEvent]
    basic = [kind for kind in kinds if kind not in (*details, Event, DetailEvent)]
    parts = [
        HEAD,
        SINKS,
        table(("event", "when", "fields besides `worker`"), map(_event, basic)),
        DETAILS,
        table(("event", "when", "fields besides `worker`"), map(_event, details)),
        "## Spans\n\n`messaging.system` is `django_jobchains`. `{type}` is the type of the job.\n",
        table(("span", "kind", "when", "parent", "attributes"), map(_span, SPANS)),
        "## Metrics\n\nThe buckets of histograms are " + ", ".join(map(_seconds, names.BUCKETS)) + ".\n",
        LIMITS,
        table(("metric", "kind", "unit", "description", "attributes"), map(_metric, names.METRICS)),
        "## Attributes\n",
        table(("attribute", "value"), ((f"`{name}`", text) for name, text in ATTRIBUTES.items())),
    ]
    return "\n".join(parts)


def table(head, rows):
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _event(kind):
    text = " ".join((inspect.getdoc(kind) or "").replace("``", "`").split())
    counter = f" Counted by `{kind.counter.name}`." if kind.counter else ""
    return f"`{kind.__name__}`", text + counter, _list(field.name for field in fields(kind) if field.name != "worker")


def _span(span):
    name, kind, when, parent, attributes = span
    return f"`{name}`", kind, when, parent, _list(attributes)


def _metric(metric):
    attributes = _list([*names.CONSTANTS.get(metric, ()), *metric.attributes])
    return f"`{metric.name}`", metric.kind, f"`{metric.unit}`", metric.description, attributes or "–"


def _list(parts):
    return ", ".join(f"`{part}`" for part in parts)


def _seconds(seconds):
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


if __name__ == "__main__":
    FILE.write_text(page())
