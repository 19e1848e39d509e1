"""Writes docs/reference/telemetry.md from the code: ``python -m tests.telemetry.reference``."""

import inspect
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from django_jobchains.telemetry import events, names
from django_jobchains.telemetry.events import DetailEvent, Event

FILE = Path(__file__).parents[2] / "docs" / "reference" / "telemetry.md"

HEAD = """\
# Telemetry

The events, spans, metrics and attributes of django_jobchains. [See what your jobs do](../guides/observability.md) shows
how to use them. This page is generated from the code, and names on it change only with an entry in the changelog.
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
should return at once. An error in a sink is logged and has no other effect. `remove_sink` removes it.

Events are frozen dataclasses of `django_jobchains.telemetry.events`. They contain no payloads, but `error`, `exception`
and `stack` may quote them: pass these through `django_jobchains.text.redaction.redacted_text` before you send them
anywhere. `worker` is the id of the worker, or empty outside of workers. All events in the first table are also logged
to the logger `django_jobchains`.

Events about attempts have a field `kind`, which is `job` or `record`. If it is `record`, `job_id` is the primary key of
the record as text, `type_name` is the name of its worker, and `chain_id` is None. Log messages show `kind` only for
records.
"""

DETAILS = """\
There may be thousands of the following events in a second. They are only created for sinks that ask for them:
`add_sink(sink, events.JobCreated, events.ChainEnded)`, or `add_sink(sink, events.DetailEvent)` for all of them. They
are not logged.
"""

LIMITS = """\
Attributes have few values: never an id or the name of a worker. Of more than 500 values of an attribute, the others are
reported as `_OTHER`.

Counters count all events, and `messaging.client.operation.duration` records all operations. The histograms about
attempts, chains and hooks record about 20 durations of each kind in a second: of each type and outcome an even share,
and at least the first one in each second. So quantiles and means of one type and outcome are correct, while those over
several of them give rare ones too much weight. Group histograms by type and outcome, and use counters for rates.
"""


def page() -> str:
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
        table(("span", "kind", "when", "parent", "attributes"), map(_span, names.SPANS)),
        "## Metrics\n\nThe buckets of histograms are " + ", ".join(map(_seconds, names.BUCKETS)) + ".\n",
        LIMITS,
        table(("metric", "kind", "unit", "description", "attributes"), map(_metric, names.METRICS)),
        "## Attributes\n",
        table(("attribute", "value"), ((f"`{name}`", text) for name, text in names.ATTRIBUTES.items())),
    ]
    return "\n".join(parts)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _event(kind: type[Event]) -> tuple[str, ...]:
    text = " ".join((inspect.getdoc(kind) or "").replace("``", "`").split())
    counter = f" Counted by `{kind.counter.name}`." if kind.counter else ""
    return f"`{kind.__name__}`", text + counter, _list(field.name for field in fields(kind) if field.name != "worker")


def _span(span: names.SpanName) -> tuple[str, ...]:
    return f"`{span.name}`", span.kind, span.when, span.parent, _list(span.attributes)


def _metric(metric: names.MetricName) -> tuple[str, ...]:
    return f"`{metric.name}`", metric.kind, f"`{metric.unit}`", metric.description, _list(metric.attributes) or "–"


def _list(parts: Iterable[str]) -> str:
    return ", ".join(f"`{part}`" for part in parts)


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


if __name__ == "__main__":
    FILE.write_text(page())
