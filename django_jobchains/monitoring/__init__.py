"""Figures about workers, queues, types, records and attempts."""

from django_jobchains.monitoring.facts import (
    Overview,
    QueueFacts,
    RecordFacts,
    TypeFacts,
    aoverview,
    overview,
    record_overview,
)
from django_jobchains.monitoring.throughput import AttemptTotals, Throughput, athroughput, throughput
from django_jobchains.store.stats import DatabaseFacts, FailingType, TypeRuns
from django_jobchains.store.workers import PoolState, WorkerFacts

__all__ = (
    "AttemptTotals",
    "DatabaseFacts",
    "FailingType",
    "Overview",
    "PoolState",
    "QueueFacts",
    "RecordFacts",
    "Throughput",
    "TypeFacts",
    "TypeRuns",
    "WorkerFacts",
    "aoverview",
    "athroughput",
    "overview",
    "record_overview",
    "throughput",
)
