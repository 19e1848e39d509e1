"""Strategies of Hypothesis: jobs to create, and numbers that pick existing rows."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from hypothesis import strategies as st

from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.rows import NewJob

T = TypeVar("T")

HOUR = 3600
#: The length of a lease in hours, by type.
TYPES = {"ship": 1.5, "mail": 2.5}

#: An index into a list of rows, modulo its length.
picks = st.integers(0, 7)
some = st.lists(picks, min_size=1, max_size=3, unique=True)
#: True in one of four cases.
flags = st.sampled_from([False, False, False, True])


@dataclass(frozen=True)
class Spec:
    """A description of a job to create."""

    type: str
    queue: str
    priority: int
    delay: int
    blockers: tuple[int, ...]
    policy: str
    key: str | None
    scope: Any
    window: float | None
    excluded: tuple[int, ...]
    #: Whether it replaces the time of an existing chain.
    replaces: bool
    #: Whether its blockers should be chains that wait for its own chain.
    closes_circle: bool
    #: Hours after it is due.
    expires: float | None


specs = st.builds(
    Spec,
    type=st.sampled_from(sorted(TYPES)),
    queue=st.sampled_from(["default", "default", "slow"]),
    priority=st.sampled_from([0, 0, 5, -5]),
    delay=st.sampled_from([0, 0, 1, 3]),
    blockers=st.lists(picks, max_size=2).map(tuple),
    policy=st.sampled_from(["wait", "fail", "run"]),
    key=st.sampled_from([None, "a", "a", "b"]),
    scope=st.sampled_from(["incomplete", "any", "incomplete_or_recent"]),
    window=st.sampled_from([None, 1.5]),
    excluded=st.lists(picks, max_size=1).map(tuple),
    replaces=flags,
    closes_circle=flags,
    expires=st.sampled_from([None, None, 0.5, 2.5]),
)
#: The end of an attempt: None for an output, or a continuation.
outcomes = st.one_of(st.none(), specs)


def pick(among, numbers):
    """Return the elements that the numbers pick, without repetitions."""
    return list(dict.fromkeys(among[number % len(among)] for number in numbers)) if among else []


def new_job(spec, id_, chains, before):
    """Return the first job of a chain, or the continuation of ``before``."""
    blockers = [chain for chain in pick(chains, spec.blockers) if not before or chain != before.chain_id]
    new = NewJob(id_, id_, 0, spec.type, spec.type, spec.queue, "{}", spec.priority)
    new.delay_seconds, new.on_blocker_failure, new.blockers = spec.delay * HOUR, spec.policy, tuple(blockers)
    new.expires_seconds = spec.expires and spec.expires * HOUR
    if before:
        new.chain_id, new.chain_index = before.chain_id, before.chain_index + 1
        new.chain_type_name, new.deduplication_key = before.chain_type_name, before.deduplication_key
    elif spec.key:
        hours = spec.window or (1.5 if spec.scope == "incomplete_or_recent" else None)
        window = timedelta(hours=hours) if hours else None
        replace = ("run_at",) if spec.replaces else ()
        excluded = pick(chains, spec.excluded)
        new.deduplicate = Deduplicate(spec.key, spec.scope, window, excluded, replace=replace)
        new.deduplication_key = spec.key
    return new
