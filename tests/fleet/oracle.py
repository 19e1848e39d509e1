"""What must be true of a fleet's work in the end, whatever has happened to its hosts and its database."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from uuid import UUID

from django_jobchains.models import Job
from tests.records.models import Upload
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants

#: How many effects "written" a chain of each kind has.
WRITTEN = {"write": 1, "part": 1, "once": 1, "async_write": 1, "fan_in": 1, "steps": 3, "attempt": 0, "cancelled": 0}


@dataclass(frozen=True)
class Acknowledged:
    """A line of a journal: a commit that the database has confirmed."""

    kind: str
    id: UUID
    key: str | None
    at: float


def read_journals(*paths):
    lines = [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]
    return [Acknowledged(**{**line, "id": UUID(line["id"])}) for line in lines]


def unfinished(using):
    """Return how many jobs and records should still run."""
    left = Job.objects.using(using).incomplete().exclude(type_name="chaos.tick")
    waits = Effect.objects.using(using).filter(label="ordered cancelled").values("job_id")
    counts = Counter(left.exclude(chain_id__in=waits).values_list("status", flat=True))
    counts["records"] = Upload.objects.using(using).exclude(state="completed").count()
    return +counts


def is_kept(line, using):
    """Return whether the database still has what it has acknowledged."""
    if line.kind == "cancelled":
        return Job.objects.using(using).filter(pk=line.id, status="cancelled").exists()
    return Effect.objects.using(using).filter(job_id=line.id, label=f"ordered {line.kind}").exists()


def assert_nothing_is_lost_or_doubled(acknowledged, using):
    """Compare what was acknowledged with the business rows, the chains, and the effects of their handlers."""
    facts = Facts(using)
    violations = [*facts.of_acknowledged(acknowledged), *facts.of_orders(), *facts.of_ticks()]
    assert not violations, "\n".join([f"{len(violations)} violations", *violations[:20]])
    assert_invariants(using, all_completed=False)


class Facts:
    """The tables in the end. The methods yield violations."""

    def __init__(self, using):
        self._effects = Counter(Effect.objects.using(using).values_list("job_id", "label"))
        self._orders = {
            job_id: label.removeprefix("ordered ") for job_id, label in self._effects if label.startswith("ordered ")
        }
        self._statuses, self._written = defaultdict(set), Counter()
        jobs = Job.objects.using(using).exclude(type_name="chaos.tick").values_list("id", "chain_id", "status")
        for job_id, chain_id, status in jobs:
            self._statuses[chain_id].add(status)
            self._written[chain_id] += self._effects[job_id, "written"]

    def of_acknowledged(self, acknowledged):
        chains = defaultdict(set)
        for line in acknowledged:
            if line.id not in self._orders:
                yield f"lost: {line}"
            if line.kind == "cancelled" and self._statuses[line.id] != {"cancelled"}:
                yield f"not cancelled any more, but {self._statuses[line.id]}: {line}"
            if line.key:
                chains[line.key].add(line.id)
        for key, found in chains.items():
            if len(found) > 1:
                yield f"{len(found)} chains with the key {key}"

    def of_orders(self):
        """A business row and its chain are committed together."""
        for chain_id in self._statuses.keys() - self._orders.keys():
            yield f"a chain without its order: {chain_id}"
        for chain_id, kind in self._orders.items():
            if kind == "record":
                count, expected = self._effects[chain_id, "converted"], 1
            else:
                count, expected = self._written[chain_id], WRITTEN[kind]
                if kind != "cancelled" and self._statuses[chain_id] != {"completed"}:
                    yield f"{kind} {chain_id} is {self._statuses[chain_id] or 'lost'}"
            if count != expected:
                yield f"{count} effects of {kind} {chain_id}, not {expected}"

    def of_ticks(self):
        """Schedules of this suite fire each second, and catch up."""
        fired = defaultdict(list)
        for (_, label), count in self._effects.items():
            name, _, second = label.partition(" ")
            if second.isdigit() and name.startswith("s"):
                fired[name].extend([int(second)] * count)
        for name, seconds in fired.items():
            if sorted(seconds) != list(range(min(seconds), max(seconds) + 1)):
                yield f"{name} fired {len(seconds)} times between {min(seconds)} and {max(seconds)}"
