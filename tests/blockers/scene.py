"""A small graph of chains that wait for each other, and every move on it that concerns a blocker.

``left`` and ``right`` run; ``waits``, ``fails``, ``runs`` and ``stopped`` (which is cancelled) wait for ``left``,
``both`` for both, ``behind`` for ``waits``, ``after`` for ``fails``.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import transaction

from django_jobchains.exceptions import JobchainsError
from django_jobchains.ids import new_id
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.policies import Backoff
from django_jobchains.store import ClaimedJob, Effects, Store
from tests.blockers.kinds import FAILS, RUNS, STEP, WAITS, goes_on, started
from tests.store.jobs import expire, failed_try, finished, lease, next_job

#: What a move returned or which error it raised, what others have to hear of it.
Result = tuple[Any, frozenset[str], frozenset[str], frozenset[str]]
#: Every job and link, without ids and times.
Picture = tuple[dict[str, Any], dict[str, Any]]


class Scene:
    def __init__(self, store: Store) -> None:
        with store.transaction():
            self._enqueue(store)

    def _enqueue(self, store: Store) -> None:
        left, right = STEP.enqueue(), STEP.enqueue()
        self.left, self.right = started(store, left, right)
        expire(self.left)
        self.chains = {"left": left.id, "right": right.id, "late": new_id()}
        for name, kind, blockers in (
            ("waits", WAITS, ["left"]),
            ("fails", FAILS, ["left"]),
            ("runs", RUNS, ["left"]),
            ("stopped", WAITS, ["left"]),
            ("both", WAITS, ["left", "right"]),
            ("behind", FAILS, ["waits"]),
            ("after", FAILS, ["fails"]),
        ):
            self.chains[name] = kind.enqueue(blockers=[self.chains[blocker] for blocker in blockers]).id
        self.labels = {id_: name for name, id_ in self.chains.items()}
        store.cancel([self.chains["stopped"]], Effects())

    @staticmethod
    def clear() -> None:
        for model in (JobBlocker, FailedAttempt, Job):
            model.objects.all()._raw_delete(model.objects.db)

    def play(self, store: Store, move: "Move") -> Result:
        effects = Effects()
        try:
            value: Any = bool(move(store, self, effects))
        except JobchainsError as error:
            return (type(error).__name__, frozenset(), frozenset(), frozenset())
        finished = frozenset(self.labels[id_] for id_ in effects.finished_chains)
        stopped = frozenset(self.labels.get(id_, "continuation") for id_ in effects.stopped_jobs)
        return value, frozenset(effects.due_types), finished, stopped

    def picture(self) -> Picture:
        names = {}
        jobs = {}
        for job in Job.objects.order_by("chain_id", "chain_index"):
            names[job.id] = f"{self.labels[job.chain_id]}.{job.chain_index}"
            jobs[names[job.id]] = (job.status, job.last_error, job.leased_by, job.output, bool(job.cancel_requested_at))
        links = {
            f"{names[link.job_id]} #{link.position}": (self.labels[link.blocker_id], link.is_open)
            for link in JobBlocker.objects.all()
        }
        return jobs, links

    def one_after_the_other(self, store: Store, *moves: "Move") -> "tuple[list[Result], Picture]":
        """What the moves come to without concurrency; nothing of it stays."""
        with transaction.atomic():
            results = []
            for move in moves:
                with transaction.atomic():
                    results.append(self.play(store, move))
            picture = self.picture()
            transaction.set_rollback(True)
        return results, picture


Move = Callable[[Store, Scene, Effects], Any]


def finish(name: str) -> Move:
    return lambda store, scene, effects: store.finish([finished(attempt(scene, name))], effects)


def go_on(name: str, *blockers: str) -> Move:
    def move(store: Store, scene: Scene, effects: Effects) -> Any:
        return store.finish([goes_on(attempt(scene, name), blockers=ids(scene, blockers))], effects)

    return move


def finish_in_transaction(name: str) -> Move:
    """As an attempt does whose handler wrote in ``complete()``."""

    def move(store: Store, scene: Scene, effects: Effects) -> Any:
        job = attempt(scene, name)
        with store.transaction():
            if store.lock(job.id) != ("running", job.lease_number):
                return None
            return store.finish([finished(job)], effects, is_locked=True)

    return move


def by_hand(name: str) -> Move:
    def move(store: Store, scene: Scene, effects: Effects) -> Any:
        with store.transaction():
            if tail := store.lock_tails(ids(scene, [name])).get(scene.chains[name]):
                store.complete(tail, "null", None, effects)
        return tail

    return move


def go_on_by_hand(name: str, *blockers: str) -> Move:
    def move(store: Store, scene: Scene, effects: Effects) -> Any:
        with store.transaction():
            if tail := store.lock_tails(ids(scene, [name])).get(scene.chains[name]):
                step = {"chain_index": tail.chain_index + 1, "blockers": ids(scene, blockers)}
                store.complete(tail, None, next_job(attempt(scene, "left"), chain_id=tail.chain_id, **step), effects)
        return tail

    return move


def cancel(*names: str) -> Move:
    return lambda store, scene, effects: store.cancel(ids(scene, names), effects)


def retry(*names: str) -> Move:
    return lambda store, scene, effects: store.retry(ids(scene, names), effects)


def delete(*names: str, cascade: bool = False) -> Move:
    return lambda store, scene, effects: store.delete(ids(scene, names), cascade=cascade, effects=effects)


def enqueue(kind: Any, *blockers: str) -> Move:
    def move(store: Store, scene: Scene, effects: Effects) -> Any:
        item = kind.item(blockers=ids(scene, blockers), id=scene.chains["late"])
        return store.create([item.job], effects)

    return move


def fail(store: Store, scene: Scene, effects: Effects) -> Any:
    return store.fail([failed_try(scene.left)], effects)


def hand_back(store: Store, scene: Scene, effects: Effects) -> Any:
    return store.hand_back([lease(scene.left)], effects)


def reap(store: Store, scene: Scene, effects: Effects) -> Any:
    return store.reap(10, Backoff(), 1, (), effects)


def sweep(store: Store, scene: Scene, effects: Effects) -> Any:
    return store.sweep(100, None, effects)[0]


def attempt(scene: Scene, name: str) -> ClaimedJob:
    return scene.left if name == "left" else scene.right


def ids(scene: Scene, names: Any) -> tuple[UUID, ...]:
    return tuple(scene.chains[name] for name in names)


#: The ends of ``left``, which others wait for.
ENDS: dict[str, Move] = {
    "left is finished": finish("left"),
    "left is finished in complete()": finish_in_transaction("left"),
    "left is completed by hand": by_hand("left"),
    "left goes on": go_on("left"),
    "left goes on by hand": go_on_by_hand("left"),
    "left fails": fail,
}
#: What may happen beside them.
MOVES: dict[str, Move] = {
    **ENDS,
    "left is cancelled": cancel("left"),
    "left is handed back": hand_back,
    "left is reaped": reap,
    "left is retried": retry("left"),
    "left is deleted": delete("left"),
    "right is finished": finish("right"),
    "right is finished in complete()": finish_in_transaction("right"),
    "right goes on": go_on("right"),
    "right goes on and waits for left": go_on("right", "left"),
    "right goes on by hand and waits for left": go_on_by_hand("right", "left"),
    "both is cancelled": cancel("both"),
    "both is completed by hand": by_hand("both"),
    "both goes on by hand": go_on_by_hand("both"),
    "both is deleted": delete("both"),
    "both is deleted with its blockers": delete("both", cascade=True),
    "all are deleted": delete("behind", "after", "both", "stopped", "runs", cascade=True),
    "waits and fails are cancelled": cancel("fails", "waits"),
    "stopped is retried": retry("stopped"),
    "a job that waits is enqueued": enqueue(WAITS, "right", "left"),
    "a job that fails is enqueued": enqueue(FAILS, "left", "waits"),
    "a job that runs anyway is enqueued": enqueue(RUNS, "left"),
    "the sweeper looks": sweep,
}
