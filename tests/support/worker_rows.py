"""Workers as their rows describe them."""

from django_jobchains.store.workers import Beat, WorkerFacts, WorkerState


def state_of(worker):
    """Return what a heartbeat, or the row of a worker, says about the worker's state."""
    return WorkerState(**{name: getattr(worker, name) for name in WorkerState.__dataclass_fields__})


def facts_of(beat, age_seconds=0.0):
    """Return the facts about a worker that sent this heartbeat some time ago."""
    return WorkerFacts(
        **{name: getattr(beat, name) for name in WorkerState.__dataclass_fields__},
        is_stale=False,
        started_at=None,
        heartbeat_at=None,
        heartbeat_seconds=beat.heartbeat_seconds,
        heartbeat_age_seconds=age_seconds,
        up_seconds=beat.up_seconds,
    )


def worker(store, name="mail:7:abc", **changes):
    """Store the heartbeat of a worker."""
    beat = {
        "id": name,
        "host": "host",
        "pid": 7,
        "version": "0.1.0",
        "slots": 10,
        "busy": 3,
        "stuck": 0,
        "queues": None,
        "type_names": ("shop.plain", "shop.charge"),
        "is_stopping": False,
        "up_seconds": 7_300.0,
        "heartbeat_seconds": 10.0,
    }
    store.workers.beat(Beat(**{**beat, **changes}))
