"""A small graph of chains that wait for each other, and the operations on it that concern blockers.

``left`` and ``right`` run; ``waits``, ``fails``, ``runs`` and ``stopped`` (which is cancelled) wait for ``left``,
``both`` for both, ``behind`` for ``waits``, ``after`` for ``fails``.
"""

from django.db import transaction

from django_jobchains.db.ids import new_id
from django_jobchains.declare.policies import Backoff
from django_jobchains.exceptions import JobchainsError
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.store.rows import Effects
from tests.blockers.chains import FAILS, RUNS, STEP, WAITS, claim_only, continued
from tests.support.jobs import expire, failed_try, finished, next_job


class Graph:
    def __init__(self, store):
        with store.db.transaction():
            self._enqueue(store)

    def _enqueue(self, store):
        left, right = STEP.enqueue(), STEP.enqueue()
        self.left, self.right = claim_only(store, left, right)
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
        store.chains.cancel([self.chains["stopped"]], Effects())

    @staticmethod
    def clear():
        for model in (JobBlocker, FailedAttempt, Job):
            model.objects.all()._raw_delete(model.objects.db)

    def apply(self, store, move):
        """Return the result of an operation, or the name of its error, and its effects."""
        effects = Effects()
        try:
            value = bool(move(store, self, effects))
        except JobchainsError as error:
            return (type(error).__name__, frozenset(), frozenset(), frozenset())
        finished = frozenset(self.labels[id_] for id_ in effects.finished_chains)
        stopped = frozenset(self.labels.get(id_, "continuation") for id_ in effects.stopped_jobs)
        return value, frozenset(effects.due_types), finished, stopped

    def snapshot(self):
        """Return all jobs and links, without ids and times."""
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

    def apply_in_sequence(self, store, *moves):
        """Return what the operations do one after the other, and roll them back."""
        with transaction.atomic():
            results = []
            for move in moves:
                with transaction.atomic():
                    results.append(self.apply(store, move))
            snapshot = self.snapshot()
            transaction.set_rollback(True)
        return results, snapshot


def finish(name):
    return lambda store, graph, effects: store.attempts.finish([finished(attempt(graph, name))], effects)


def continue_(name, *blockers):
    def move(store, graph, effects):
        return store.attempts.finish([continued(attempt(graph, name), blockers=ids(graph, blockers))], effects)

    return move


def finish_in_transaction(name):
    """Finish a job like an attempt whose handler used ``job.complete()``."""

    def move(store, graph, effects):
        job = attempt(graph, name)
        with store.db.transaction():
            if store.attempts.lock(job.id) != ("running", job.lease_number):
                return None
            return store.attempts.finish([finished(job)], effects, is_locked=True)

    return move


def complete_by_hand(name):
    def move(store, graph, effects):
        with store.db.transaction():
            if last_job := store.last_jobs.lock(ids(graph, [name])).get(graph.chains[name]):
                store.chains.complete(last_job, "null", None, effects)
        return last_job

    return move


def continue_by_hand(name, *blockers):
    def move(store, graph, effects):
        with store.db.transaction():
            if last_job := store.last_jobs.lock(ids(graph, [name])).get(graph.chains[name]):
                step = {"chain_index": last_job.chain_index + 1, "blockers": ids(graph, blockers)}
                store.chains.complete(
                    last_job, None, next_job(attempt(graph, "left"), chain_id=last_job.chain_id, **step), effects
                )
        return last_job

    return move


def cancel(*names):
    return lambda store, graph, effects: store.chains.cancel(ids(graph, names), effects)


def retry(*names):
    return lambda store, graph, effects: store.chains.retry(ids(graph, names), effects)


def delete(*names, cascade=False):
    return lambda store, graph, effects: store.chains.delete(ids(graph, names), cascade=cascade, effects=effects)


def enqueue(kind, *blockers):
    def move(store, graph, effects):
        item = kind.item(blockers=ids(graph, blockers), id=graph.chains["late"])
        return store.jobs.create([item], effects)

    return move


def fail(store, graph, effects):
    return store.attempts.fail([failed_try(graph.left)], effects)


def hand_back(store, graph, effects):
    return store.attempts.hand_back([graph.left.key], effects)


def reap(store, graph, effects):
    return store.leases.reap(10, Backoff(), 1, (), effects)


def sweep(store, graph, effects):
    return store.blockers.sweep(100, None, effects)[0]


def attempt(graph, name):
    return graph.left if name == "left" else graph.right


def ids(graph, names):
    return tuple(graph.chains[name] for name in names)


#: The ends of ``left``, which other chains wait for.
ENDS = {
    "left is finished": finish("left"),
    "left is finished in complete()": finish_in_transaction("left"),
    "left is completed by hand": complete_by_hand("left"),
    "left continues": continue_("left"),
    "left continues by hand": continue_by_hand("left"),
    "left fails": fail,
}
#: Operations that may run at the same time.
MOVES = {
    **ENDS,
    "left is cancelled": cancel("left"),
    "left is handed back": hand_back,
    "left is reaped": reap,
    "left is retried": retry("left"),
    "left is deleted": delete("left"),
    "right is finished": finish("right"),
    "right is finished in complete()": finish_in_transaction("right"),
    "right continues": continue_("right"),
    "right continues and waits for left": continue_("right", "left"),
    "right continues by hand and waits for left": continue_by_hand("right", "left"),
    "both is cancelled": cancel("both"),
    "both is completed by hand": complete_by_hand("both"),
    "both continues by hand": continue_by_hand("both"),
    "both is deleted": delete("both"),
    "both is deleted with its blockers": delete("both", cascade=True),
    "all are deleted": delete("behind", "after", "both", "stopped", "runs", cascade=True),
    "waits and fails are cancelled": cancel("fails", "waits"),
    "stopped is retried": retry("stopped"),
    "a job that waits is enqueued": enqueue(WAITS, "right", "left"),
    "a job that fails is enqueued": enqueue(FAILS, "left", "waits"),
    "a job that runs anyway is enqueued": enqueue(RUNS, "left"),
    "the sweeper runs": sweep,
}
