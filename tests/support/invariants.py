"""The invariants of the tables that must hold after every test."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from uuid import UUID

from django_jobchains.models import FailedAttempt, Job
from django_jobchains.statuses import FINAL
from tests.shop.models import Effect

#: Types whose handlers write one effect "written" in complete().
WRITERS = ("chaos.write", "chaos.slow_write", "chaos.step", "chaos.hold", "chaos.cut_off", "chaos.gather")


def assert_invariants(using="default", *, all_completed=True, cancelled=()):
    """Raise an error that lists all violations. ``all_completed``: whether every job must be completed.

    ``cancelled``: chains that were cancelled while they ran, and may have been completed anyway.
    """
    jobs = list(Job.objects.using(using).defer("input", "output", "last_error"))
    failures = FailedAttempt.objects.using(using).values_list("job_id", "kind")
    effects = Effect.objects.using(using).values_list("job_id", "label")
    oracle = Oracle(jobs, Counter(failures), Counter(effects))
    if all_completed:
        oracle.check_all_completed(cancelled)
    oracle.check_states()
    oracle.check_counters()
    oracle.check_chains()
    oracle.check_effects()
    assert not oracle.violations, "\n".join(oracle.violations[:20])


@dataclass
class Oracle:
    jobs: list[Job]
    failures: Counter[tuple[UUID, str]]
    effects: Counter[tuple[UUID, str]]
    violations: list[str] = field(default_factory=list)

    def expect(self, holds, job, rule):
        if not holds:
            facts = f"{job.status}, attempt {job.attempt}, lease {job.lease_number}, crashes {job.crashes}"
            self.violations.append(f"{job}: {rule} ({facts}, leased by {job.leased_by})")

    def check_all_completed(self, cancelled):
        for job in self.jobs:
            is_cancelled = job.status == "cancelled" and job.chain_id in cancelled
            self.expect(job.status == "completed" or is_cancelled, job, "I1: a committed job is completed in the end")

    def check_states(self):
        for job in self.jobs:
            is_leased = job.leased_by is not None and job.leased_until is not None
            is_free = job.leased_by is None and job.leased_until is None
            self.expect(is_leased if job.status == "running" else is_free, job, "a lease belongs to a running job")
            self.expect((job.status in FINAL) is (job.finished_at is not None), job, "a final job has ended")
            self.expect(job.status != "completed" or job.completed_by, job, "I3: somebody completed it")

    def check_counters(self):
        """Check that each claim has completed, failed or rescheduled the job, or returned it to the queue."""
        for job in self.jobs:
            crashes, errors = self.failures[(job.id, "crash")], self.failures[(job.id, "error")]
            open_or_won = int(job.status in ("running", "completed"))
            self.expect(job.crashes == crashes, job, f"I5: {crashes} crashes are recorded")
            ended = crashes + errors + (job.reschedules or 0)
            self.expect(job.attempt == ended + open_or_won, job, f"I5: {ended} attempts failed or were rescheduled")
            self.expect(job.lease_number >= job.attempt, job, "every attempt had its own lease")

    def check_chains(self):
        chains = defaultdict(list)
        for job in self.jobs:
            chains[job.chain_id].append(job)
        for chain_id, jobs in chains.items():
            jobs.sort(key=lambda job: job.chain_index)
            head = jobs[0]
            self.expect(head.id == chain_id and head.chain_index == 0, head, "I7: a chain is its first job")
            indexes = [job.chain_index for job in jobs]
            self.expect(indexes == list(range(len(jobs))), head, f"I7: steps without a gap: {indexes}")
            for job in jobs[:-1]:
                self.expect(job.status == "completed", job, "I7: it has a continuation only when it is completed")

    def check_effects(self):
        for job in self.jobs:
            written = self.effects[(job.id, "written")]
            if job.type_name in WRITERS:
                self.expect(written == (job.status == "completed"), job, f"I13: {written} effects in the transaction")
            noted = [self.effects[(job.id, f"attempt {number}")] for number in range(1, job.lease_number + 2)]
            self.expect(max(noted) <= 1, job, f"I3: one run for each attempt: {noted}")
            if job.type_name == "chaos.attempt" and job.status == "completed":
                self.expect(sum(noted) >= 1, job, "I14: effects outside happen at least once")
