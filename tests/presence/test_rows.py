"""The rows of workers, as the store writes and reads them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from django_jobchains.models import WorkerPresence
from django_jobchains.monitoring import overview
from django_jobchains.store.workers import Beat
from tests.support.jobs import database_now
from tests.support.pool_states import POOL

pytestmark = pytest.mark.django_db

BEAT = Beat(
    id="host:1:a",
    host="host",
    pid=1,
    version="1.0",
    slots=10,
    busy=3,
    stuck=1,
    queues=("mail", 'it\'s "quoted"'),
    type_names=("shop.mail", "shop.ship"),
    is_stopping=False,
    up_seconds=0.0,
    heartbeat_seconds=10.0,
)


def silent(seconds: float, worker: str = BEAT.id) -> None:
    moment = database_now() - timedelta(seconds=seconds)
    assert WorkerPresence.objects.filter(pk=worker).update(heartbeat_at=moment) == 1


@pytest.mark.parametrize(("seconds", "is_stale"), [(0, False), (20, False), (40, True)])
def test_a_worker_is_stale_after_three_missed_heartbeats(store, seconds, is_stale):
    store.workers.beat(BEAT)
    silent(seconds)
    [worker] = overview().workers
    assert worker.is_stale is is_stale
    assert seconds - 0.1 < worker.heartbeat_age_seconds < seconds + 10  # SQLite returns days as a float


def test_a_type_is_served_by_workers_that_are_alive(store):
    store.workers.beat(BEAT)
    store.workers.beat(replace(BEAT, id="stale", type_names=("shop.ship",)))
    store.workers.beat(replace(BEAT, id="other", type_names=("shop.ship", "shop.new")))
    silent(40, "stale")
    assert {part.name: part.workers for part in overview().types} == {"shop.mail": 1, "shop.new": 1, "shop.ship": 2}


def test_a_beat_replaces_the_pools_up_to_a_limit(store):
    store.workers.beat(replace(BEAT, pools=(POOL,)))
    pools = tuple(replace(POOL, key=f"key {number}", busy=2) for number in range(25))
    store.workers.beat(replace(BEAT, pools=pools))
    assert overview().workers[0].pools == pools[:20]


@pytest.mark.parametrize("pools", [[{"level": "process", "unknown": 1}], None])
def test_pools_of_a_worker_of_another_version_are_omitted(store, pools):
    store.workers.beat(BEAT)
    WorkerPresence.objects.update(pools=pools)
    assert overview().workers[0].pools == ()
