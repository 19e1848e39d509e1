"""An attempt whose lease number is outdated writes nothing, however it ends."""

import pytest
from django.db.models import F

from django_jobchains.exceptions import LeaseLost
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import FailJob, RescheduleJob
from django_jobchains.telemetry.events import AttemptAbandoned
from tests.records.models import Export
from tests.support.attempts import committed, on_own_connection
from tests.support.scenario import JOBS, RECORDS, complete, effect, effects, kinds, outside, prepare, write

pytestmark = committed


def steal(jobs):
    """Raise the lease numbers over another connection, as the claims of another worker do."""

    def bump():
        for model in (Job, Export):
            model.objects.filter(pk__in=[job.id for job in jobs]).update(lease_number=F("lease_number") + 1)

    return outside(lambda: on_own_connection(bump))


def assert_untouched(scenario, label=None):
    """Check that the job still runs for the other worker, and that the stale attempt has written nothing."""
    assert (scenario.states(), scenario.errors(), effects()) == ({"running"}, {None}, [label] if label else [])
    assert not FailedAttempt.objects.exists()
    for job in Job.objects.all():
        assert (job.lease_number, job.attempt, job.output, job.chain_index) == (2, 1, None, 0)
        assert job.leased_until is not None


def use(scenario, phase, swallows):
    raised = []

    def slow(jobs):
        yield steal(jobs)
        try:
            yield phase(write(jobs, "stale"))
        except LeaseLost as error:
            raised.append(error)
            if not swallows:
                raise

    first, *_ = scenario.enqueue(slow)
    scenario.run()
    assert [(str(first.id) in str(error), error.reason) for error in raised] == [(True, "taken_by_another_worker")]
    assert_untouched(scenario)


@kinds(*JOBS, *RECORDS)
@pytest.mark.parametrize("swallows", [False, True])
def test_complete_raises_lease_lost_before_the_handler_writes(scenario, swallows):
    use(scenario, complete, swallows)


@pytest.mark.parametrize("swallows", [False, True])
def test_prepare_raises_lease_lost_before_the_handler_writes(scenario, swallows):
    use(scenario, prepare, swallows)


ENDS = [None, ValueError("stale"), FailJob("stale"), RescheduleJob(delay=5), SystemExit()]


@kinds(*JOBS, *RECORDS)
@pytest.mark.parametrize("end", ENDS)
def test_no_outcome_of_a_stale_attempt_is_written(scenario, end):
    def slow(jobs):
        yield steal(jobs)
        if end is not None:
            raise end

    scenario.enqueue(slow)
    scenario.run()
    assert_untouched(scenario)


def test_no_continuation_of_a_stale_attempt_is_created(scenario):
    def slow(jobs):
        yield steal(jobs)
        for job in jobs:
            continuation = job.continue_with("scenario", 2)
        return continuation

    made = scenario.enqueue(slow)
    scenario.run()
    assert_untouched(scenario)
    assert Job.objects.count() == len(made)


def test_lease_lost_between_the_phases_keeps_only_what_prepare_committed(scenario):
    def slow(jobs):
        yield prepare(write(jobs, "prepared"))
        yield steal(jobs)
        yield complete(write(jobs, "stale"))

    scenario.enqueue(slow)
    scenario.run()
    assert_untouched(scenario, "prepared")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("completed", "already_completed"),
        ("cancelled", "cancelled"),
        ("pending", "taken_by_another_worker"),
        ("failed", "taken_by_another_worker"),
        (None, "not_found"),
    ],
)
def test_lease_lost_has_the_reason(processors, work, status, reason):
    later = "2091-01-01T00:00Z"
    end = {"status": status, "output": "by hand", "leased_by": None, "leased_until": None, "run_at": later}
    reasons = []

    def interfere(job_id):
        found = Job.objects.filter(pk=job_id)
        if status:
            found.update(**end)
        else:
            found.delete()

    @processors.register("slow")
    def slow(job):
        on_own_connection(interfere, job.id)
        try:
            with job.complete():
                effect(job, "stale")
        except LeaseLost as error:
            reasons.append(error.reason)
            raise

    slow.enqueue()
    work()
    assert (reasons, effects()) == ([reason], [])
    assert list(Job.objects.values_list("status", flat=True)) == ([status] if status else [])
    assert not FailedAttempt.objects.exists()


@kinds(*JOBS, *RECORDS)
def test_an_attempt_that_deletes_its_own_row_is_abandoned_as_not_found(scenario, events):
    def deletes(jobs):
        yield outside(lambda: [model.objects.all().delete() for model in (Job, Export)])

    made = scenario.enqueue(deletes)
    scenario.run()
    assert [event.reason for event in events.of(AttemptAbandoned)] == ["not_found"] * len(made)


def test_other_jobs_are_completed_beside_a_stale_attempt(processors, work):
    """Their outcomes may be written in one statement with the stale one."""

    @processors.register("slow")
    def slow(job):
        if job.input == "stolen":
            steal([job]).function()
        return job.input

    chains = [slow.enqueue(value) for value in ("a", "stolen", "b", "c")]
    work(slots=4)
    assert [chain.refresh().output for chain in chains] == ["a", None, "b", "c"]
    assert chains[1].status == "running"
