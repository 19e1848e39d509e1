"""Records whose handlers run in child processes: hooks run in the worker, and a child that dies fails one attempt."""

import os
import signal
from datetime import timedelta

import psutil
import pytest
from django.utils import timezone

from tests.records.models import Export, Letter
from tests.shop.models import Effect
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]


@pytest.fixture
def worker(start_process, types):
    settings = {"DJANGO_SETTINGS_MODULE": "tests.records.worker_settings"}
    return start_process("--type", types, "--slots", "4", jobchains={"SHUTDOWN_SECONDS": 0.1}, **settings).until_ready()


@pytest.fixture
def types():
    return "records.*"


def ended(export, state):
    until(lambda: Export.objects.filter(pk=export.pk, state=state).exists(), 60, lambda: facts(export))
    export.refresh_from_db()
    return export


def facts(export):
    return vars(Export.objects.get(pk=export.pk)), steps(export)


def steps(export):
    """Return the id of the process that made each step."""
    labels = Effect.objects.filter(job_id=export.pk).values_list("label", flat=True)
    return {name: int(pid) for name, pid in (label.rsplit(" ", 1) for label in labels)}


def test_every_way_a_handler_in_a_child_may_end(worker):
    ways = ("return", "fail", "die", "commit", "commit and die", "log", "save", "requeue", "reschedule", "send", "hang")
    exports = {way: Export.objects.create(name=way) for way in ways}

    returned = ended(exports["return"], "completed")
    until(lambda: len(steps(returned)) == 4, 60)
    processes = steps(returned)
    assert processes["pre"] == processes["post"] == worker.pid
    assert processes["handle"] == processes["around"] not in (worker.pid, os.getpid())

    failed = ended(exports["fail"], "failed")
    assert (failed.failure_message, failed.num_failures) == ("NonRetryable: no such file", 1)
    until(lambda: "no such file" in worker.output)

    died = ended(exports["die"], "failed")
    assert "SIGKILL" in (died.failure_message or "")
    assert (died.num_failures, died.num_resets) == (2, 0)
    until(lambda: "post" in steps(died))

    for way in ("commit", "commit and die"):
        committed = ended(exports[way], "completed")
        assert "written" in steps(committed)
        assert (committed.num_failures, committed.lease_number) == (0, 1)

    logged = ended(exports["log"], "completed")
    assert [(entry["key"], entry["exit_code"]) for entry in logged.execution_logs] == [("convert", 0)]
    assert logged.num_failures == 1

    saved = ended(exports["save"], "completed")
    assert (saved.name, len(saved.execution_logs)) == ("saved", 1)

    for way in ("requeue", "reschedule"):
        requeued = Export.objects.filter(pk=exports[way].pk, process_after__isnull=False, state="queued")
        until(requeued.exists, 60)
        assert requeued.get().process_after > timezone.now() + timedelta(minutes=50)

    sent = ended(exports["send"], "failed")
    assert (sent.failure_message or "").startswith("RuntimeError: A handler cannot call send()")

    hung = ended(exports["hang"], "errored")
    assert (hung.failure_message or "").startswith("The handler exceeded max_runtime (6 s).")
    assert worker.is_alive


def test_an_async_handler_runs_on_an_event_loop_of_the_child(worker):
    Letter.objects.create(code="a")
    until(lambda: Letter.objects.filter(status="completed").exists(), 60, lambda: vars(Letter.objects.get()))
    [entry] = Letter.objects.get().logs
    assert entry["exit_code"] == 0
    assert int(entry["out"]) not in (worker.pid, os.getpid())


@pytest.mark.parametrize("types", ["unlimited.*"])
def test_a_cancellation_ends_the_child_and_a_stop_hands_its_record_back(worker):
    cancelled = Export.objects.create(name="hang")
    until(lambda: "hanging" in steps(cancelled), 60)
    Export.objects.update(cancel=True)
    assert ended(cancelled, "cancelled").num_failures == 0

    stopped = Export.objects.create(name="hang")
    until(lambda: "hanging" in steps(stopped), 60)
    worker.signal(signal.SIGTERM)
    worker.wait(60)
    stopped.refresh_from_db()
    assert (stopped.state, stopped.num_failures, stopped.num_resets) == ("queued", 0, 0)


@pytest.mark.parametrize("types", ["unlimited.*"])
def test_the_end_that_a_child_has_committed_is_not_a_loss(worker):
    """The worker looks at the records between the commit and the reply of the child."""
    requeued, hanging = Export.objects.create(name="commit requeue"), Export.objects.create(name="hang")
    until(lambda: f"marker is lost: {requeued.pk}" in worker.output, 60, lambda: worker.output)
    until(lambda: "hanging" in steps(hanging), 60)
    Export.objects.filter(pk=hanging.pk).update(cancel=True)
    ended(hanging, "cancelled")  # One query finds all changes to the records of a model.
    Effect.objects.create(job_id=requeued.pk, label="go on 0")
    until(lambda: "post" in steps(requeued), 60, lambda: worker.output)
    assert "asked to stop: None" in steps(requeued)
    assert f"{requeued.pk} is lost" not in worker.output


@pytest.mark.parametrize("types", ["unlimited.*"])
def test_a_record_that_is_completed_by_hand_is_a_loss_for_its_child(worker):
    export = Export.objects.create(name="hang")
    until(lambda: "hanging" in steps(export), 60)
    Export.objects.update(state="completed")
    until(lambda: f"{export.pk} is lost: already completed" in worker.output, 60, lambda: worker.output)
    assert worker.output.count(f"{export.pk} is lost") == 1


@pytest.mark.parametrize("types", ["transient.*"])
def test_a_transient_child_handles_one_record_and_ends(worker):
    returned = [Export.objects.create(name="return") for _ in range(3)]
    died = Export.objects.create(name="die")
    children = {steps(ended(export, "completed"))["handle"] for export in returned}
    children.add(steps(ended(died, "failed"))["handle"])
    assert "SIGKILL" in (died.failure_message or "")
    assert died.num_failures == 2
    assert len(children - {worker.pid}) == 4
    until(lambda: not any(map(psutil.pid_exists, children)), 30)
    assert worker.is_alive
