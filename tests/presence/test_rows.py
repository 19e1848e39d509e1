"""The rows of workers, as the store writes them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from django_jobchains.models import WorkerPresence
from django_jobchains.overview import overview
from django_jobchains.store import Beat, Store, get_store
from tests.store.jobs import database_now

pytestmark = pytest.mark.django_db

BEAT = Beat(
    worker="host:1:a",
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


@pytest.fixture
def store(db: None) -> Store:
    return get_store()


def silent(seconds: float, worker: str = BEAT.worker) -> None:
    moment = database_now() - timedelta(seconds=seconds)
    assert WorkerPresence.objects.filter(pk=worker).update(heartbeat_at=moment) == 1


def test_a_beat_says_all_about_a_worker(store: Store) -> None:
    store.beat(BEAT)
    [found] = store.present_workers()
    assert found.beat == BEAT
    assert abs((found.heartbeat_at - database_now()).total_seconds()) < 60
    assert 0 <= found.silent_seconds < 60
    row = WorkerPresence.objects.get()
    assert (row.queues, row.type_names) == (list(BEAT.queues or ()), list(BEAT.type_names))


def test_the_next_beat_changes_the_row(store: Store) -> None:
    store.beat(BEAT)
    began = WorkerPresence.objects.get().started_at
    silent(30)
    store.beat(replace(BEAT, busy=0, stuck=0, slots=11, is_stopping=True, up_seconds=5, heartbeat_seconds=3))
    [found] = store.present_workers()
    assert found.silent_seconds < 20
    assert (found.beat.busy, found.beat.stuck, found.beat.slots, found.beat.is_stopping) == (0, 0, 11, True)
    assert found.started_at == began
    assert found.beat.heartbeat_seconds == 3


def test_what_never_changes_of_a_worker_is_read_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(BEAT, worker="other", queues=None)
    for beat in (BEAT, other):
        store.beat(beat)
    known = {worker.beat.worker: worker for worker in store.present_workers()}
    WorkerPresence.objects.update(type_names=["not read"], queues=["not read"], busy=7)
    store.beat(third := replace(BEAT, worker="third"))
    rows: list[Any] = []
    fetch = store._fetch
    monkeypatch.setattr(store, "_fetch", lambda sql, params: rows.extend(fetch(sql, params)) or rows)
    found = {worker.beat.worker: worker.beat for worker in store.present_workers(known)}
    assert "not read" not in str(rows)
    assert found == {BEAT.worker: replace(BEAT, busy=7), "other": replace(other, busy=7), "third": third}


def test_workers_are_counted_by_their_rows(store: Store) -> None:
    assert store.count_workers() == 0
    store.beat(BEAT)
    store.beat(replace(BEAT, worker="other"))
    assert store.count_workers() == 2


def test_a_row_that_was_deleted_is_made_again_and_knows_when_the_worker_started(store: Store) -> None:
    store.beat(replace(BEAT, up_seconds=3600))
    [found] = store.present_workers()
    assert abs((database_now() - found.started_at).total_seconds() - 3600) < 60


def test_a_worker_that_leaves_has_no_row(store: Store) -> None:
    store.beat(BEAT)
    store.beat(replace(BEAT, worker="other"))
    store.leave(BEAT.worker)
    store.leave("unknown")
    assert [worker.id for worker in overview().workers] == ["other"]


@pytest.mark.parametrize(("seconds", "is_stale"), [(0, False), (20, False), (40, True)])
def test_a_worker_is_stale_after_three_heartbeats_that_did_not_come(
    store: Store, seconds: float, is_stale: bool
) -> None:
    store.beat(BEAT)
    silent(seconds)
    [worker] = overview().workers
    assert worker.is_stale is is_stale
    assert seconds - 0.1 < worker.heartbeat_age_seconds < seconds + 10  # SQLite tells days as a float


@pytest.mark.parametrize(("beats", "is_pruned"), [(5.5, False), (6.5, True)])
@pytest.mark.parametrize("heartbeat_seconds", [10.0, 100.0])
def test_a_worker_is_gone_after_six_of_its_own_heartbeats(
    store: Store, heartbeat_seconds: float, beats: float, is_pruned: bool
) -> None:
    store.beat(replace(BEAT, heartbeat_seconds=heartbeat_seconds))
    store.beat(replace(BEAT, worker="alive"))
    silent(heartbeat_seconds * beats)
    assert store.prune_workers() == ([BEAT.worker] if is_pruned else [])
    left = set(WorkerPresence.objects.values_list("pk", flat=True))
    assert left == ({"alive"} if is_pruned else {"alive", BEAT.worker})


def test_the_overview_shows_what_a_worker_said(store: Store) -> None:
    store.beat(replace(BEAT, queues=None, up_seconds=100))
    [worker] = overview().workers
    said: dict[str, Any] = {name: getattr(worker, name) for name in ("id", "host", "pid", "version", "slots", "busy")}
    assert said == {"id": "host:1:a", "host": "host", "pid": 1, "version": "1.0", "slots": 10, "busy": 3}
    assert (worker.stuck, worker.queues, worker.type_names) == (1, None, BEAT.type_names)
    assert 99 < worker.up_seconds < 160
    assert overview().as_json()["workers"][0]["type_names"] == ["shop.mail", "shop.ship"]


def test_a_type_is_served_by_workers_that_are_alive(store: Store) -> None:
    store.beat(BEAT)
    store.beat(replace(BEAT, worker="stale", type_names=("shop.ship",)))
    store.beat(replace(BEAT, worker="other", type_names=("shop.ship", "shop.new")))
    silent(40, "stale")
    workers = {part.name: part.workers for part in overview().types}
    assert workers == {"shop.mail": 1, "shop.new": 1, "shop.ship": 2}
    assert [part.name for part in overview().queues] == sorted(BEAT.queues or ())
