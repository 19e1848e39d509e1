"""Facts, and who listens. Facts about writes are reported after their commit."""

from django_jobchains.telemetry.events import Event
from django_jobchains.telemetry.sinks import add_sink, remove_sink, report

__all__ = ("Event", "add_sink", "remove_sink", "report")
