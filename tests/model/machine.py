"""Hypothesis applies random operations to the store and to the model, and compares their tables after each one."""

from copy import deepcopy
from datetime import timedelta
from itertools import count
from uuid import UUID

from django.db import connection, transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from django_jobchains.declare.policies import Backoff
from django_jobchains.exceptions import JobchainsError
from django_jobchains.statuses import FINAL, OPEN
from django_jobchains.store import get_store
from django_jobchains.store.rows import Effects, FailedTry, FinishedJob, HeldLease
from tests.model.invariants import check
from tests.model.model import MAX_CRASHES, STOPPED, Model, crash_wait
from tests.model.specs import HOUR, TYPES, flags, new_job, outcomes, pick, picks, some, specs
from tests.model.tables import read
from tests.support.jobs import database_now

BACKOFF = Backoff(HOUR, 2, crash_wait(99) * HOUR, jitter=0)


class Chains(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.store = get_store()
        self.savepoint = connection.savepoint()
        self.start = database_now()
        self.model = Model()
        self.ids = (UUID(int=number) for number in count(1))
        #: Every attempt so far. Most of them have lost their leases.
        self.attempts = {}
        self.compare()

    def teardown(self):
        self.store.db.ahead_seconds = 0
        connection.savepoint_rollback(self.savepoint)

    # Comparisons

    @invariant()
    def compare(self):
        self.tables, self.times = read(self.start)
        assert self.tables.jobs == self.model.jobs
        assert self.tables.links == self.model.links
        assert self.tables.failures == self.model.failures
        check(self.tables)

    @invariant()
    def nothing_is_stuck(self):
        """Check that the sweeper finds no job to free."""
        blocked = sorted(job.chain for job in self.model.jobs.values() if job.status == "blocked")
        assert self.store.blockers.sweep(3, None, Effects()) == ([], blocked[2] if len(blocked) >= 3 else None)

    @invariant()
    def the_next_due_date_is_known(self):
        seconds = self.store.jobs.next_due(dict.fromkeys(TYPES, 60))
        due = [job.run_at or 0 for job in self.model.jobs.values() if job.status == "pending"]
        assert (seconds is None) is (not due)
        assert seconds is None or abs(seconds / HOUR - (min(due) - self.model.now)) < 0.25

    def both(self, in_store, in_model):
        """Run an operation in the store and in the model, check that they return or raise the same, and return it."""
        before, effects = deepcopy(self.model), Effects()
        try:
            expected = in_model(self.model)
        except JobchainsError as error:
            self.model, expected = before, type(error)
        try:
            with transaction.atomic():
                actual = in_store(effects)
        except JobchainsError as error:
            actual = type(error)
        assert actual == expected
        self.check_effects(before, effects)
        return actual

    def check_effects(self, before, effects):
        """Check that the effects name every ended chain, due type and stopped job. They may name more."""
        ended = {chain for chain in before.chains() if before.last_job(chain).status not in FINAL}
        ended -= {chain for chain in self.model.chains() if self.model.last_job(chain).status not in FINAL}
        assert ended <= effects.finished_chains
        was = {job.id: (job.status, job.run_at) for job in before.jobs.values()}
        due = [job for job in self.model.jobs.values() if job.status == "pending"]
        assert {job.type for job in due if (job.status, job.run_at) != was.get(job.id)} <= effects.due_types
        assert {id_ for id_, job in before.jobs.items() if self.is_stopped_now(job)} <= effects.stopped_jobs

    def is_stopped_now(self, before):
        """Return whether the last operation requires an attempt of this job to stop."""
        job = self.model.jobs.get(before.id)
        if before.status != "running":
            return False
        if job is None or (job.status, job.completed_by) == ("completed", None):
            return True
        return job.status == "running" and job.is_stopped and not before.is_stopped

    # Choices

    def keys(self, numbers, *, stale):
        """Pick attempts that hold a lease, or with ``stale`` any attempts. Claims jobs first if no lease is held."""
        if not any(map(self.model.held, self.attempts)):
            self.take(4, TYPES, None)
            self.compare()
        return pick([key for key in self.attempts if stale or self.model.held(key)], numbers)

    def overtaken(self):
        """Return the attempts whose jobs have been claimed again since."""
        running = {job.id for job in self.model.jobs.values() if job.status == "running"}
        return [key for key in self.attempts if key[0] in running and not self.model.held(key)]

    def jobs(self, numbers, statuses, *, any_):
        """Pick jobs with these statuses, or with ``any_`` any jobs."""
        return pick(
            [job.id for job in self.model.jobs.values() if any_ or job.status in statuses] or [*self.model.jobs],
            numbers,
        )

    def chains(self, numbers, *, any_):
        """Pick chains that have not ended, or with ``any_`` any chains."""
        chains = self.model.chains()
        return pick([chain for chain in chains if any_ or self.model.last_job(chain).status in OPEN] or chains, numbers)

    def new_job(self, spec, before=None):
        chains = self.model.chains()
        if before and spec.closes_circle:
            waiting = [chain for chain in chains if before.chain_id in self.model.awaited_by([chain])]
            chains = [chain for chain in waiting if chain != before.chain_id] or chains
        return new_job(spec, next(self.ids), chains, before)

    # Rules

    @initialize(batch=st.lists(specs, min_size=2, max_size=3))
    def begin(self, batch):
        self.enqueue(batch)

    @rule(batch=st.lists(specs, min_size=1, max_size=3))
    def enqueue(self, batch):
        new = [self.new_job(spec) for spec in batch]
        before, effects = deepcopy(self.model), Effects()
        answers = self.model.enqueue(new)
        for row, job, same in zip(self.store.jobs.create(new, effects), new, answers, strict=True):
            assert row.id in same
            assert row.is_deduplicated is (same != {job.id})
            assert row.created_at is not None
            if row.is_deduplicated:
                assert row.is_replaced is (bool(job.deduplicate.replace) and self.model.replace(row.id, job))
        self.check_effects(before, effects)

    @rule(
        limit=st.integers(1, 4),
        types=st.sampled_from([["mail", "ship"], ["mail", "ship"], ["mail"], ["ship"]]),
        queues=st.sampled_from([None, None, ["default"], ["slow"]]),
        dies=flags,
    )
    def claim(self, limit, types, queues, dies):
        self.take(limit, types, queues, dies=dies)

    def take(self, limit, types, queues, *, dies=False):
        """Claim jobs, and hand those back that have expired, unless the worker ``dies`` before."""
        hours = {name: TYPES[name] for name in types}
        worker = f"worker-{limit}"
        expected = self.model.claim(worker, limit, hours, queues, self.times)
        seconds = {name: value * HOUR for name, value in hours.items()}
        expired = []
        claimed = self.store.jobs.claim(worker, limit, seconds, queues, expired=expired)
        late = {job.key for job in expired}
        assert ([job.key for job in claimed], late) == expected
        self.attempts.update((job.key, job) for job in claimed)
        if late and not dies:
            self.hand_back_in_both(late, has_begun=False)

    @rule(numbers=some, stale=flags)
    def renew(self, numbers, stale):
        keys = self.keys(numbers, stale=stale)
        lost, stopped = self.model.renew(keys, 3.5)
        leases = [HeldLease(*key, 3.5 * HOUR) for key in keys]
        for renewal in (self.store.leases.renew(leases), self.store.leases.check(list(keys))):
            assert (set(renewal.lost), renewal.cancelled) == (lost, stopped)

    @rule(numbers=some, ends=st.lists(outcomes, min_size=3, max_size=3), stale=flags, is_locked=st.booleans())
    def finish(self, numbers, ends, stale, is_locked):
        keys = self.keys(numbers, stale=stale)
        done = {
            key: self.new_job(end, self.attempts[key]) if end else "done" for key, end in zip(keys, ends, strict=False)
        }
        jobs = [
            FinishedJob(*key, *(('"done"', None) if isinstance(end, str) else (None, end))) for key, end in done.items()
        ]
        for key in keys if is_locked else ():
            self.store.attempts.lock(key[0])
        self.both(
            lambda effects: self.store.attempts.finish(jobs, effects, is_locked=is_locked),
            lambda model: model.finish(done),
        )

    @rule(numbers=some, delay=st.sampled_from([None, 0, 1, 3]), stale=flags)
    def fail_or_reschedule(self, numbers, delay, stale):
        keys = self.keys(numbers, stale=stale)
        tries = [FailedTry(*key, "Boom: no", "Traceback", delay_seconds=delay and delay * HOUR) for key in keys]
        if delay is None:
            self.both(
                lambda effects: self.store.attempts.fail(tries, effects), lambda model: model.end_failed(keys, "failed")
            )
        else:
            self.both(
                lambda effects: self.store.attempts.reschedule(tries, effects),
                lambda model: model.end_failed(keys, "pending", delay),
            )

    @rule(numbers=some, stale=flags, has_begun=st.booleans())
    def hand_back(self, numbers, stale, has_begun):
        self.hand_back_in_both(self.keys(numbers, stale=stale), has_begun=has_begun)

    def hand_back_in_both(self, keys, *, has_begun):
        hand_back = self.store.attempts.hand_back
        self.both(
            lambda effects: hand_back(list(keys), effects, has_begun=has_begun),
            lambda model: model.hand_back(keys, has_begun=has_begun),
        )

    @precondition(lambda self: self.model.jobs)
    @rule()
    def expire(self):
        self.both(
            lambda effects: {job.id for job in self.store.chains.expire(100, effects)}, lambda model: model.expire()
        )

    @rule(limit=st.integers(1, 4), hours=st.sampled_from([0, 2, 3]))
    def reap(self, limit, hours):
        self.keys([], stale=False)
        self.pass_time(hours)
        self.both(
            lambda effects: {
                job.id: job.status for job in self.store.leases.reap(limit, BACKOFF, MAX_CRASHES, effects=effects)
            },
            lambda model: model.reap(limit, self.times),
        )

    @precondition(lambda self: self.model.jobs)
    @rule(number=picks, end=outcomes, any_=flags)
    def complete(self, number, end, any_):
        [chain] = self.chains([number], any_=any_)
        last_job = self.store.last_jobs.lock([chain])[chain]
        outcome = self.new_job(end, last_job) if end else "done"
        output, continuation = ('"done"', None) if isinstance(outcome, str) else (None, outcome)
        self.both(
            lambda effects: self.store.chains.complete(last_job, output, continuation, effects),
            lambda model: model.complete(chain, outcome),
        )

    @rule(numbers=some, is_unknown=flags, any_=flags)
    def cancel(self, numbers, is_unknown, any_):
        chains = self.chains(numbers, any_=any_) + [next(self.ids)] * is_unknown
        self.both(lambda effects: self.store.chains.cancel(chains, effects), lambda model: model.cancel(chains))

    @precondition(lambda self: self.model.jobs)
    @rule(numbers=some, any_=flags)
    def retry(self, numbers, any_):
        jobs = self.jobs(numbers, STOPPED, any_=any_)
        self.both(lambda effects: self.store.chains.retry(jobs, effects), lambda model: model.retry(jobs))

    @precondition(lambda self: self.model.jobs)
    @rule()
    def lose_leases(self):
        """Let leases expire, claim the jobs again, and check that the stale attempts can write nothing."""
        for _ in range(2):
            self.reap(4, 3)
            self.pass_time(4)
            self.compare()
            self.take(4, TYPES, None)
            self.compare()
        keys = self.overtaken()
        assert self.store.attempts.finish([FinishedJob(*key, '"stale"') for key in keys], Effects()) == set()
        assert self.store.attempts.fail([FailedTry(*key, "Boom: no", "Traceback") for key in keys], Effects()) == {}
        assert self.store.attempts.hand_back(keys) == set()
        assert set(self.store.leases.renew([HeldLease(*key, HOUR) for key in keys]).lost) == set(keys)

    @precondition(lambda self: self.model.jobs)
    @rule(numbers=some, delay=st.sampled_from([0, 2]), is_date=st.booleans(), any_=flags)
    def move(self, numbers, delay, is_date, any_):
        jobs = self.jobs(numbers, ["pending"], any_=any_)
        date = self.start + timedelta(hours=self.model.now + delay) if is_date else None
        seconds = 0 if is_date else delay * HOUR
        self.both(
            lambda effects: self.store.chains.move(jobs, date, seconds, effects), lambda model: model.move(jobs, delay)
        )

    @precondition(lambda self: self.model.jobs)
    @rule(numbers=some, cascade=st.booleans(), is_unknown=flags)
    def delete(self, numbers, cascade, is_unknown):
        chains = pick(self.model.chains(), numbers[:2]) + [next(self.ids)] * is_unknown
        self.both(
            lambda effects: self.store.chains.delete(chains, cascade=cascade, effects=effects),
            lambda model: model.delete(chains, cascade=cascade),
        )

    @rule(hours=st.sampled_from([1, 1, 2, 4]))
    def pass_time(self, hours):
        self.model.now += hours
        self.store.db.ahead_seconds = self.model.now * HOUR
