"""The oracle reports what a broken system would write into its journals and tables."""

from itertools import count

import pytest

from tests.soak.oracle import Effect, Evidence, RateNumbers, RateUse, examine

LEASE_SECONDS = 8


class Story:
    """A journal and tables, in which each order is done as it should be, a second after the one before."""

    def __init__(self):
        self.journal, self.orders, self.effects = [], {}, []
        self._numbers = count(1)
        self.now = 0.0

    def note(self, what, **facts):
        self.journal.append({"what": what, "at": self.now, "pid": 1, **facts})

    def order(self, kind, *whats, **facts):
        """Order this, and let an attempt write each of the effects."""
        order = f"{kind} {next(self._numbers)}"
        self.orders[order] = kind
        self.note("ordered", order=order, kind=kind, chain=order, **facts)
        for what in whats:
            seen = ",".join(sorted(effect.token for effect in self.effects if effect.order == order))
            job = f"job {next(self._numbers)}"
            self.effects.append(Effect(order, what, job, self.attempt(order, job), seen))
        return order

    def attempt(self, order, job, *, seconds=0.1, claimed=None, **facts):
        token = f"token {next(self._numbers)}"
        claimed = self.now if claimed is None else claimed
        self.note(
            "start",
            **{"token": token, "order": order, "job": job, "claimed": claimed, "counted": "", "rated": "", **facts},
        )
        self.journal.append({"what": "end", "at": self.now + seconds, "pid": 1, "token": token})
        self.now += 1
        return token

    def run(self, name, at, seconds=0.1, rated=False, job=None, **facts):
        """Let an attempt of a job run at this time."""
        self.now = at
        names = {"rated" if rated else "counted": name}
        return self.attempt("none", job or f"job {next(self._numbers)}", seconds=seconds, **names, **facts)

    def findings(self):
        journal = sorted(self.journal, key=lambda line: line["at"])
        limits = {"soak.pair": 2}
        rates = {"soak.rate": RateNumbers(3, 1, 1), "soak.slow": RateNumbers(60, 60, 5)}
        return examine(Evidence(journal, self.orders, self.effects, limits, rates, LEASE_SECONDS))

    def violations(self):
        return {kind: len(texts) for kind, texts in self.findings().violations.items()}


@pytest.fixture
def story():
    """One order of each kind, with all that belongs to it."""
    story = Story()
    story.order("plain", "done")
    story.order("fan_in", "part", "part", "part", "gathered")
    story.order("branch", "branched", "left")
    story.order("cancelled")
    story.order("fails", "failed", "done")
    returned = story.order("returned")
    seen = story.attempt(returned, "returned")
    story.effects.append(Effect(returned, "kept", "kept", story.attempt(returned, "kept"), seen))
    for second in range(5):
        story.effects.append(Effect("none", "tick", "tick", story.attempt("none", f"tick {second}"), f"first {second}"))
    assert story.violations() == {}
    return story


def test_a_lost_commit_is_reported(story):
    story.note("ordered", order="nowhere", kind="plain", chain="nowhere")
    assert story.violations() == {"lost": 1}


def test_a_lost_chain_is_reported(story):
    story.order("plain")
    assert story.violations() == {"lost": 1}


def test_work_that_has_begun_and_never_ends_is_reported(story):
    order = story.order("plain")
    story.attempt(order, "job")
    assert story.violations() == {"stuck": 1}
    story.order("branch", "branched")
    assert story.violations() == {"stuck": 2}


def test_a_lost_business_row_is_reported(story):
    del story.orders["plain 1"]
    assert story.violations() == {"lost": 2}  # that of the journal, and that of the effects


@pytest.mark.parametrize("what", ["done", "gathered", "left", "kept", "failed"])
def test_a_doubled_effect_is_reported(story, what):
    story.effects.append(next(effect for effect in story.effects if effect.what == what))
    assert story.violations() == {"doubled": 1}


def test_a_second_chain_of_a_key_is_reported(story):
    first = story.order("once", key="a")
    story.effects.append(Effect(first, "done", first, story.attempt(first, first)))
    story.note("ordered", order="another row", kind="once", chain=first, key="a")
    assert story.violations() == {}
    story.note("ordered", order="another row", kind="once", chain="second", key="a")
    assert story.violations() == {"doubled": 1, "lost": 1}


def test_a_cancelled_chain_that_starts_is_reported(story):
    cancelled = next(order for order, kind in story.orders.items() if kind == "cancelled")
    story.attempt(cancelled, "job")
    assert story.violations() == {"stale": 1}


def test_an_effect_of_an_attempt_that_others_have_followed_is_reported(story):
    story.attempt("plain 1", story.effects[0].job)
    assert story.violations() == {"stale": 1}


def test_an_attempt_that_starts_late_but_was_claimed_before_is_not_stale(story):
    story.attempt("plain 1", story.effects[0].job, claimed=-1.0)
    assert story.violations() == {}


def test_an_effect_of_no_attempt_is_reported(story):
    story.orders["stray"] = "plain"
    story.effects.append(Effect("stray", "done", "job", "unknown"))
    assert story.violations() == {"stale": 1}


@pytest.mark.parametrize("what", ["gathered", "left", "kept"])
def test_a_result_of_another_attempt_is_reported(story, what):
    number = next(number for number, effect in enumerate(story.effects) if effect.what == what)
    story.effects[number] = story.effects[number]._replace(seen="of another one")
    assert story.violations() == {"stale": 1}


def test_a_failure_without_its_chain_is_reported(story):
    story.effects = [effect for effect in story.effects if effect.what != "failed"]
    assert story.violations() == {"lost": 1}


def test_missed_and_doubled_ticks_are_reported(story):
    tick = next(effect for effect in story.effects if effect.seen == "first 2")
    story.effects.append(tick)
    assert story.violations() == {"tick": 1}
    story.effects = [effect for effect in story.effects if effect != tick]
    assert story.violations() == {"tick": 1}


def test_more_than_a_limit_allows_is_reported(story):
    story.run("soak.pair a", 100, seconds=1)
    story.run("soak.pair a", 100.5, seconds=1)
    story.run("soak.pair b", 100.6, seconds=1)
    story.run("soak.pair a", 101, seconds=1)
    assert story.violations() == {}
    assert story.findings().peaks["soak.pair a"] == 2
    story.run("soak.pair a", 101.4, seconds=1)
    assert story.violations() == {"limit": 1}


def test_a_killed_process_ends_its_attempts(story):
    for at in (100, 101):
        story.run("soak.pair", at, seconds=7, pid=5)
    story.journal = [line for line in story.journal if line["what"] != "end"]
    story.now = 103
    story.note("killed", victim=5)
    story.run("soak.pair", 104)
    assert story.violations() == {}
    story.run("soak.pair", 102)
    assert story.violations() == {"limit": 1}


def test_attempts_whose_end_is_unknown_do_not_count(story):
    story.run("soak.pair", 100)
    story.journal = [line for line in story.journal if line["what"] != "end"]
    for at in (101, 101.01):
        story.run("soak.pair", at)
    assert story.violations() == {}


def test_attempts_that_lost_their_leases_do_not_count(story):
    """One was paused, one took longer than a lease, and one was followed by another attempt."""
    story.run("soak.pair", 100, seconds=6, pid=5)
    story.now = 101
    story.note("paused", victim=5)
    story.run("soak.pair", 100, seconds=LEASE_SECONDS + 1)
    story.run("soak.pair", 100, seconds=6, job="followed")
    story.run("soak.pair", 104, job="followed")
    story.run("soak.pair", 104)
    assert story.violations() == {}
    assert story.findings().lost_leases == 2


def test_a_changed_limit_holds_two_seconds_after_its_commit(story):
    story.now = 100
    story.note("limit_asked", name="soak.pair", number=1)
    story.now = 110
    story.note("limit_set", name="soak.pair", number=1)
    for at in (109, 111.5, 120):
        story.run("soak.pair", at, seconds=1)
        story.run("soak.pair", at + 0.4, seconds=1)
    assert story.violations() == {"limit": 1}


def test_a_raised_limit_holds_from_the_moment_it_was_asked_for(story):
    story.now = 100
    story.note("limit_asked", name="soak.pair", number=3)
    for at in (99.9, 100, 100.1, 100.2):
        story.run("soak.pair", at, seconds=1)
    assert story.violations() == {"limit": 1}


def test_more_starts_than_a_rate_allows_are_reported(story):
    """What counts is when attempts were claimed."""
    for at in (100, 100.33, 100.67, 101):
        story.run("soak.rate", at, rated=True)
        story.run("soak.rate", at + 5, claimed=at + 50, rated=True)
    assert story.violations() == {}
    story.run("soak.rate", 100.99, rated=True)
    assert story.violations() == {"rate": 2}


def test_a_burst_and_the_seconds_of_a_rate_are_allowed(story):
    for at in (100, 100, 100, 100, 100, *range(101, 160)):
        story.run("soak.slow a", at, rated=True)
        story.run("soak.slow b", at + 30, rated=True)
    assert story.violations() == {}
    story.run("soak.slow a", 159.9, rated=True)
    assert story.violations() == {"rate": 1}


def test_a_changed_rate_is_in_effect_two_seconds_after_its_commit(story):
    story.now = 100
    story.note("limit_asked", name="soak.rate", number=2)
    story.now = 110
    story.note("limit_set", name="soak.rate", number=2)
    for at in (109, 111.5):
        for third in range(3):
            story.run("soak.rate", at + third / 3, rated=True)
    for half in (120, 120.5, 121, 121.5):
        story.run("soak.rate", half, rated=True)
    assert story.violations() == {}
    story.run("soak.rate", 121.9, rated=True)
    assert story.violations() == {"rate": 1}


def test_how_often_a_rate_was_reached_is_reported(story):
    """In the first minute it is reached, in the second it is not, and the third is not over."""
    for second in (*range(100, 154), *range(160, 210), 230):
        story.run("soak.slow", second, rated=True)
    assert story.findings().rates == {"soak.slow": RateUse(105, allowed=120, minutes=2, reached=1, most=54, of=64)}


def test_a_rate_that_was_raised_counts_as_reached_with_more_starts(story):
    story.now = 101
    story.note("limit_asked", name="soak.slow", number=120)
    for second in range(100, 161):
        story.run("soak.slow", second, rated=True)
    assert story.findings().rates["soak.slow"][:4] == (61, 120, 1, 0)
