"""The worker of the tasks backend, as a new implementation: it has no known gap, and a reason for what it declines."""

from datetime import timedelta

from django.utils import timezone
from due_work_harness.contract import (
    Claim,
    Decline,
    DueWorkContract,
    NotApplicable,
    Profile,
    SafetyContract,
    SafetyProfile,
    due_work_contract_suite,
)
from due_work_harness.crash_histories import CallableDelivery, ExternalCall, HandoffHistory
from due_work_harness.process_histories import ProcessHistory
from due_work_harness.profiles.bounded_ownership import FencedOwnership
from due_work_harness.profiles.durable_retention import Retention
from due_work_harness.profiles.eventual_convergence import ConvergentWrite
from due_work_harness.safety.bounded_retry import BoundedRetry

from django_jobchains.models import Job
from django_jobchains.store.task_names import forget_names
from tests.due_work import worker
from tests.due_work.apps import DEATHS, FAILURES
from tests.due_work.tasks import post_office, send_to_closed_office

NAME = "tasks of django_jobchains"


def die(job_id):
    """Let the lease of a job run out, as if its owner had died long ago."""
    Job.objects.filter(pk=job_id).update(leased_until=timezone.now() - timedelta(hours=1))


def ownership():
    return FencedOwnership(
        name=NAME,
        make_claimable=worker.enqueue_letter,  # ARRANGE
        claim=worker.claim,  # REAL PRODUCTION: the store, as workers call it
        fenced_write=worker.finish,
        other_fenced_writes={"retry": worker.retry, "fail": worker.fail, "hand back": worker.hand_back},
        renew_lease=worker.renew,
        reclaim_stalled=worker.take_back,
        release_unchanged=worker.hand_back,
        expire_lease=die,  # EXTERNAL SEAM: the owner
        observe=worker.row,  # OBSERVE
    )


def retention():
    def finished():
        task_id = worker.enqueue_letter()
        worker.run_one()
        return task_id

    return Retention(
        name=NAME,
        make_non_terminal=worker.enqueue_letter,  # ARRANGE
        make_prunable=finished,
        run_retention=worker.prune,  # REAL PRODUCTION
        # EXTERNAL SEAM: the database's clock, which is moved
        still_exists=lambda task_id: Job.objects.filter(pk=task_id).exists(),  # OBSERVE
    )


def convergence():
    """The evidence is the output of an attempt. The state is the token of its owner, with the row of the job."""

    def claimed():
        worker.enqueue_letter()
        job_id, token = worker.claim()
        return token, worker.row(job_id)

    def finished_by_another():
        token, _ = claimed()
        die(token[0])
        worker.take_back(token[0])
        worker.finish(*worker.claim(), output='"output of the second owner"')
        return token, worker.row(token[0])

    return ConvergentWrite(
        name=NAME,
        unsettled_state=claimed,  # ARRANGE
        settled_state=finished_by_another,  # EXTERNAL SEAM: the first owner was taken for dead
        apply_evidence=worker.finish_with_output_of_first,  # REAL PRODUCTION
        is_settled=lambda state: state[1][0] == "completed",  # OBSERVE
    )


def bounded_retry():
    def later(task_id):
        worker.get_store().db.ahead_seconds += 60

    return BoundedRetry(
        name=NAME,
        max_executions=3,
        make_failing=worker.enqueue_to_closed_office,  # ARRANGE
        due_work=worker.due_tasks,  # REAL PRODUCTION
        run_once=worker.run_one,
        advance_to_due=later,  # EXTERNAL SEAM: the database's clock
        is_terminal=lambda task_id: worker.status(task_id, send_to_closed_office) == "FAILED",  # OBSERVE
        failure_attempt_count=worker.refusals,
        observe=worker.row,
    )


def first_order():
    """Return an order, in a process that has not enqueued its task before."""
    forget_names(using="default")
    return worker.new_order()


ENQUEUE = HandoffHistory(
    name="a transaction enqueues a task",
    arrange=first_order,
    transition=worker.enqueue_for,
    observe=worker.tasks_of,
)
IN_THIS_PROCESS = HandoffHistory(
    name="a worker runs a task",
    arrange=worker.enqueue_letter,
    transition=worker.run_one,
    observe=lambda task_id: (worker.status(task_id), worker.letters(task_id)),
    external_calls=(ExternalCall(post_office, "send"),),
)
IN_A_PROCESS = ProcessHistory(
    name="a worker process runs a task",
    initial=("READY", 0),
    run=worker.run_in_process,
    observe=lambda task_id: (worker.status(task_id), worker.letters(task_id)),
    recover=worker.restart_process,
    death_points=DEATHS,
    failure_points=FAILURES,
)

CONTRACT = DueWorkContract(
    name=NAME,
    transactional=True,
    profiles={
        Profile.AUTOMATIC_RECOVERY: Decline(
            "There is no sweep that dispatches tasks a second time: the row of a task is what is owed, and workers "
            "claim it. A lost wake-up delays the claim by a poll. A dead worker's task is reclaimed: see ownership"
        ),
        Profile.BOUNDED_OWNERSHIP: Claim(),
        Profile.CRASH_AMBIGUITY: Decline(
            "A task runs at least once. Whether an attempt whose worker died has reached the service that it calls is "
            "known to the task's function only, which can use the id of its result as the key of the call"
        ),
        Profile.DURABLE_RETENTION: Claim(),
        Profile.EVENTUAL_CONVERGENCE: Claim(),
        Profile.FACT_DERIVED_OBLIGATIONS: NotApplicable(
            "The obligation is the row of the task, not derived from others"
        ),
    },
    safety=SafetyContract(
        name=NAME,
        transactional=True,
        profiles={
            SafetyProfile.REPLAY_SAFE_EXECUTION: Decline(
                "A task may run again after a crash, so that running it twice must be safe: a property of its function"
            ),
            SafetyProfile.BOUNDED_RETRY: Claim(),
        },
        retry=bounded_retry,
    ),
    ownership=ownership,
    retention=retention,
    convergence=convergence,
    handoffs=(ENQUEUE, IN_THIS_PROCESS),
    handoff_delivery=CallableDelivery(name=NAME, recover=worker.restart),
    process_handoffs=(IN_A_PROCESS,),
)


@due_work_contract_suite(CONTRACT)
class TestTheWorker:
    pass
