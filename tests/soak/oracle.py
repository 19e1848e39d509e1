"""What the business tables and the journals say about the work, without a look at the tables of the package.

All rules are about facts that handlers and clients have written. ``Evidence`` holds them as plain values.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: The effects of an order, and how often they happen, by kind. Other kinds have one. "side" is "left" or "right".
EXPECTED = {
    "fan_in": {"part": 3, "gathered": 1},
    "branch": {"branched": 1, "side": 1},
    "returned": {"kept": 1},
    "cancelled": {},
}
ONE_EFFECT = {"done": 1}
SIDES = ("left", "right")
#: A change of a limit takes effect within this time after its commit.
IN_EFFECT_SECONDS = 2
#: A rate is reached in a minute with at least this share of the starts that it allows.
REACHED = 0.9


class Effect(NamedTuple):
    order: str
    what: str
    job: str
    token: str
    seen: str = ""


class RateNumbers(NamedTuple):
    """A rate: ``limit`` starts in ``seconds``, and up to ``burst`` starts at the same time after a pause."""

    limit: int
    seconds: float
    burst: int


@dataclass
class Evidence:
    """``orders``: the kind of each order. ``limits``: numbers by name."""

    journal: list[dict[str, Any]]
    orders: dict[str, str]
    effects: list[Effect]
    limits: dict[str, int] = field(default_factory=dict)
    rates: dict[str, RateNumbers] = field(default_factory=dict)
    lease_seconds: float = 8


class RateUse(NamedTuple):
    """How often a rate was reached.

    ``most``: the starts of the fullest window, and ``of`` how many. ``allowed``: how many starts the rate allowed in
    all ``minutes``, without bursts. ``reached``: the minutes in which most of them happened.
    """

    starts: int
    allowed: int
    minutes: int
    reached: int
    most: int
    of: int


@dataclass
class Findings:
    """``violations``: sentences by kind. ``peaks``: the most that ran at the same time, for each limit."""

    violations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    peaks: dict[str, int] = field(default_factory=dict)
    rates: dict[str, RateUse] = field(default_factory=dict)
    lost_leases: int = 0

    def add(self, kind, text):
        self.violations[kind].append(text)


def examine(evidence):
    findings = Findings()
    starts = [line for line in evidence.journal if line["what"] == "start"]
    effects = defaultdict(list)
    for effect in evidence.effects:
        effects[effect.order].append(effect)
    examine_acknowledged(evidence, findings)
    examine_orders(evidence, findings, effects, {start["order"] for start in starts})
    examine_attempts(findings, evidence.effects, starts)
    examine_ticks(evidence.effects, findings)
    examine_limits(evidence, findings, starts)
    examine_rates(evidence, findings, starts)
    return findings


def examine_acknowledged(evidence, findings):
    """What the database has confirmed is there. Requests with one key have one chain, which has run."""
    chains = defaultdict(set)
    have_run = {effect.job for effect in evidence.effects}
    for line in evidence.journal:
        if line["what"] != "ordered":
            continue
        if "key" in line:
            chains[line["key"]].add(line["chain"])
        elif line["order"] not in evidence.orders:
            findings.add("lost", f"{line['kind']} {line['order']} was acknowledged")
    for key, found in chains.items():
        if len(found) > 1:
            findings.add("doubled", f"key {key} has {len(found)} chains: {sorted(found)}")
        for chain in found - have_run:
            findings.add("lost", f"the chain {chain} of the key {key} was acknowledged")


def examine_orders(evidence, findings, effects, started):
    """Each order has exactly its effects, and what they have seen is what was written."""
    for order, kind in evidence.orders.items():
        found = effects[order]
        if kind == "fails":
            examine_failures(findings, order, [effect.seen for effect in found if effect.what == "failed"])
            found = [effect for effect in found if effect.what != "failed"]
        counts = Counter("side" if effect.what in SIDES else effect.what for effect in found)
        expected_counts = EXPECTED.get(kind, ONE_EFFECT)
        for what in expected_counts.keys() | counts.keys():
            number, expected = counts[what], expected_counts.get(what, 0)
            if number > expected:
                findings.add("doubled", f"{kind} {order}: {what} {number} times")
            elif number < expected:
                name = "stuck" if order in started or found else "lost"
                findings.add(name, f"{kind} {order}: {what} {number} times instead of {expected}")
        if kind == "cancelled" and order in started:
            findings.add("stale", f"{kind} {order} was started")
        examine_results(findings, kind, order, found)
    for order in effects.keys() - evidence.orders.keys():
        if any(effect.what != "tick" for effect in effects[order]):
            findings.add("lost", f"order {order} has effects, but no row")


def examine_failures(findings, order, failures):
    """The order has failed at least once, and one chain follows each failure."""
    if not failures:
        findings.add("lost", f"fails {order}: no chain follows its failure")
    for failure, number in Counter(failures).items():
        if number > 1:
            findings.add("doubled", f"fails {order}: {number} chains follow {failure}")


def examine_results(findings, kind, order, effects):
    tokens = defaultdict(list)
    for effect in effects:
        tokens[effect.what].append(effect.token)
    for effect in effects:
        source = {"gathered": "part", **dict.fromkeys(SIDES, "branched")}.get(effect.what)
        if source and effect.seen != ",".join(sorted(tokens[source])):
            findings.add("stale", f"{kind} {order}: {effect.what} has seen {effect.seen}, not {tokens[source]}")


def examine_attempts(findings, effects, starts):
    """An effect is that of the last attempt that was claimed: it can have come only after those before were over."""
    latest, by_token = {}, {}
    for start in starts:
        by_token[start["token"]] = start
        if start["claimed"] >= latest.get(start["job"], start)["claimed"]:
            latest[start["job"]] = start
    for effect in effects:
        start = by_token.get(effect.token)
        if start is None:
            findings.add("stale", f"{effect} is of no attempt")
        elif latest[start["job"]]["claimed"] > start["claimed"]:
            findings.add("stale", f"{effect} is not of the last attempt")
        # The result of an attempt that wrote no effects has gone to the next step.
        if effect.what == "kept":
            source = by_token.get(effect.seen)
            if source is None or latest[source["job"]]["claimed"] > source["claimed"]:
                findings.add("stale", f"{effect} has seen what is not of the last attempt")


def examine_ticks(effects, findings):
    """Schedules fire each second, and catch up."""
    fired = defaultdict(list)
    for effect in effects:
        if effect.what == "tick":
            name, _, second = effect.seen.partition(" ")
            fired[name].append(int(second))
    for name, seconds in fired.items():
        for second, number in Counter(seconds).items():
            if number > 1:
                findings.add("tick", f"{name} {second} fired {number} times")
        for second in sorted(set(range(min(seconds), max(seconds))) - set(seconds)):
            findings.add("tick", f"{name} {second} was missed")


class Run(NamedTuple):
    started: float
    ended: float
    claimed: float
    token: str


def examine_limits(evidence, findings, starts):
    examine_runs(runs_by_name(evidence, findings, starts), Numbers(evidence.journal, evidence.limits), findings)


def examine_runs(runs_by_name, numbers, findings):
    """At each start, no more run than the limit allows."""
    for name, runs in runs_by_name.items():
        changes = sorted(change for run in runs for change in ((run.started, 1, run), (run.ended, 0, run)))
        running = set()
        findings.peaks[name] = 0
        for at, is_start, run in changes:
            if not is_start:
                running.discard(run)
                continue
            running.add(run)
            findings.peaks[name] = max(findings.peaks[name], len(running))
            if len(running) > (allowed := numbers.largest(name, run.claimed, at)):
                tokens = " ".join(each.token for each in sorted(running))
                findings.add("limit", f"{name}: {len(running)} instead of {allowed} run at {at}: {tokens}")


def runs_by_name(evidence, findings, starts):
    """Return when attempts with a limit ran, as far as they held their leases.

    A killed process ends its attempts. An attempt that was paused, took longer than a lease, or is followed by another
    one, has lost its lease at an unknown time, after which others may run: it counts until the pause, or not at all.
    Handlers themselves take much less time than a lease. An attempt whose end is unknown does not count.
    """
    ends = {line["token"]: line["at"] for line in evidence.journal if line["what"] == "end"}
    killed, paused = {}, defaultdict(list)
    for line in evidence.journal:
        if line["what"] == "killed":
            killed[line["victim"]] = line["at"]
        elif line["what"] == "paused":
            paused[line["victim"]].append(line["at"])
    claims = defaultdict(list)
    for start in starts:
        claims[start["job"]].append(start["claimed"])
    runs = defaultdict(list)
    for start in starts:
        if not start["counted"]:
            continue
        started, claimed, pid = start["at"], start["claimed"], start["pid"]
        ended = ends.get(start["token"], max(killed.get(pid, 0), started))
        is_followed = any(claimed < other < ended for other in claims[start["job"]])
        ended = min([ended, *(at for at in paused[pid] if claimed <= at)])
        if is_followed or ended <= started or ended - claimed > evidence.lease_seconds:
            findings.lost_leases += 1
        else:
            runs[start["counted"]].append(Run(started, ended, claimed, start["token"]))
    return runs


def examine_rates(evidence, findings, starts):
    """No window of the seconds of a rate has more claims than the rate and its burst allow."""
    numbers = Numbers(evidence.journal, {name: rate.limit for name, rate in evidence.rates.items()})
    claims = defaultdict(list)
    for start in starts:
        if start["rated"]:
            claims[start["rated"]].append(start["claimed"])
    for name, times in sorted(claims.items()):
        times.sort()
        rate = evidence.rates[name.partition(" ")[0]]
        most = of = first = 0
        for last, at in enumerate(times):
            while at - times[first] >= rate.seconds:
                first += 1
            number, allowed = last - first + 1, numbers.largest(name, times[first], at) + rate.burst - 1
            if not most or number / allowed > most / of:
                most, of = number, allowed
            if number > allowed:
                findings.add("rate", f"{name}: {number} instead of {allowed} starts in {rate.seconds} s until {at}")
        findings.rates[name] = RateUse(len(times), *minutes_of(times, name, numbers, rate), most, of)


def minutes_of(times, name, numbers, rate):
    """Return how many starts were allowed in the whole minutes since the first one, their number, and of full ones."""
    per_minute = Counter(int(at - times[0]) // 60 for at in times)
    allowed = []
    for minute in range(int(times[-1] - times[0]) // 60):
        seconds = [times[0] + 60 * minute + second for second in range(60)]
        allowed.append(sum(numbers.largest(name, at, at + 1) for at in seconds) / rate.seconds)
    reached = sum(per_minute[minute] >= REACHED * number for minute, number in enumerate(allowed))
    return round(sum(allowed)), len(allowed), reached


class Numbers:
    """What limits were allowed to be, by name. A change may take effect from when it was asked for."""

    def __init__(self, journal, declared, in_effect_seconds=IN_EFFECT_SECONDS):
        #: Lists of a number, and since and until when it may have been in effect.
        self._periods = {name: [[number, float("-inf"), float("inf")]] for name, number in declared.items()}
        for line in journal:
            if line["what"] == "limit_asked":
                self._periods.setdefault(line["name"], []).append([line["number"], line["at"], float("inf")])
            elif line["what"] == "limit_set":
                for period in self._periods[line["name"]][:-1]:
                    period[2] = min(period[2], line["at"] + in_effect_seconds)

    def largest(self, name, since, until):
        """Return the largest number that may have been in effect between these times."""
        periods = self._periods[name if name in self._periods else name.partition(" ")[0]]
        return max(number for number, begins, ends in periods if begins <= until and ends >= since)
