"""Tells other processes what a write of the store changed for them, after its commit."""

from django_jobchains.notifications import EVERY, chain_finished, job_scheduled, ownership_lost, publish_after_commit
from django_jobchains.store import Effects

MOST_NAMED = 20


def announce(using: str, effects: Effects) -> None:
    hints = {job_scheduled(name, effects.due_counts.get(name)) for name in effects.due_types}
    # Of many it is said that there are some: a busy worker ends thousands a second, and hardly any is awaited.
    chains = effects.finished_chains if len(effects.finished_chains) <= MOST_NAMED else {EVERY}
    hints.update(map(chain_finished, chains))
    hints.update(map(ownership_lost, effects.stopped_jobs))
    if hints:
        publish_after_commit(using, hints)
