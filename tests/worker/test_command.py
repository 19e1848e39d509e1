"""``run_jobworker`` in this process: its output, its checks of options, and its exit codes."""

import logging
import sys
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import FailJob, RescheduleJob
from tests.support.workers import completed


@pytest.fixture
def run(registry):
    """Run the command with the test's registry until no job is due, and return its output."""

    def run(*arguments, **options):
        out = StringIO()
        call_command("run_jobworker", *arguments, stdout=out, **{"burst": True, "no_color": True, **options})
        return out.getvalue()

    return run


@pytest.fixture
def greet(processors):
    @processors.register("worker.greet")
    def greet(job):
        if job.input == "fail":
            raise FailJob("no more \x1b]0;owned\x07\x1b[31mred\r\x00\u202e\x9b2J greetings")
        if job.input == "later":
            raise RescheduleJob(delay=3600)
        return job.continue_with("worker.then") if job.input == "go on" else f"hello {job.input}"

    processors.register("worker.then")(lambda job: None)
    return greet


def failing(store, monkeypatch, *errors):
    """Let the first claims raise these errors."""
    claim, errors = store.jobs.claim, list(errors)

    def failing(*args, **kwargs):
        if errors:
            raise errors.pop(0)
        return claim(*args, **kwargs)

    monkeypatch.setattr(store.jobs, "claim", failing)


def test_verbosity_0_shows_only_problems_of_the_worker(greet, run, store, monkeypatch):
    for word in ("world", "fail", "later"):
        greet.enqueue(word)
    assert run(verbosity=0) == ""
    failing(store, monkeypatch, ValueError("a bug\x1b[2J\r\nin the claim"))
    greet.enqueue("world")
    output = run(verbosity=0)
    assert "jobchains-claim-loop" in output
    assert "a bug" in output
    assert "\x1b" not in output
    assert completed() == 2


def test_verbosity_1_shows_start_failures_and_totals(greet, run):
    ids = {word: str(greet.enqueue(word).id) for word in ("world", "fail", "later")}
    output = run("--queue", "default", "--slots", "3", "--name", "mail", verbosity=1)
    first, *middle, last = output.splitlines()
    assert first.startswith("Worker mail:")
    assert "3 slots" in first
    assert "worker.greet" in first
    assert "Stopped: 1 completed · 1 failed · 1 rescheduled." in last
    assert any(ids["fail"] in line and "no more" in line for line in middle)
    assert not any(ids["later"] in line for line in middle), "rescheduling is not a failure"
    assert ids["world"] not in output
    assert all(letter.isprintable() or letter == "\n" for letter in output)


def test_verbosity_2_shows_each_job_and_how_its_chain_continues(greet, run):
    enqueued = [greet.enqueue("go on") for _ in range(2)]
    lines = run(verbosity=2).splitlines()
    assert sum("→ worker.then" in line for line in lines) == 2
    assert all(any(str(chain.id) in line for line in lines) for chain in enqueued)


def test_each_event_is_shown_once_if_the_log_is_on_the_terminal_too(greet, run, capsys):
    """The log shows what it has a level for, and the command's own lines are the rest."""
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("django_jobchains")
    logger.addHandler(handler)
    try:
        ids = {word: str(greet.enqueue(word).id) for word in ("world", "fail")}
        output = run(verbosity=2)
    finally:
        logger.removeHandler(handler)
    logged = capsys.readouterr().err
    seen = {
        word: [sum(id_ in line for line in text.splitlines()) for text in (logged, output)] for word, id_ in ids.items()
    }
    assert seen == {"fail": [1, 0], "world": [0, 1]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slots", "0"], "--slots"),
        (["--max-jobs", "0"], "--max-jobs"),
        (["--type", "nothing.*"], "worker.greet"),
        (["--type", "worker.geret"], "Did you mean 'worker.greet'?"),
        (["--database", "elsewhere"], "elsewhere"),
        (["--shutdown-timeout", "soon"], "--shutdown-timeout"),
        (["--shutdown-timeout", "-1"], "shutdown"),
        (["--processes", "0"], "--processes"),
        (["--processes", "2"], "from a command line"),
        (["--health-port", "99999"], "--health-port"),
        (["--max-rss", "much"], "500M"),
        (["--max-rss", "1M"], "less than a worker uses before its first job"),
        (["--unknown"], "--unknown"),
    ],
)
def test_invalid_option_is_refused(greet, run, arguments, message):
    greet.enqueue("world")
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    assert message in str(caught.value)
    assert completed() == 0


def test_project_without_processors_is_refused(run):
    with pytest.raises(CommandError, match=r"No processor to run .* with a jobs module\?"):
        run()


def test_queues_types_and_max_jobs_are_passed_to_the_worker(greet, processors, run):
    processors.register("other.job")(lambda job: None).enqueue(queue="mail")
    chains.enqueue_many([greet.item(str(number), queue="mail") for number in range(5)])
    greet.enqueue("elsewhere", queue="default")
    output = run("--queue", "mail", "--queue", "news", "--type", "worker.*", "--max-jobs", "3", burst=False)
    assert "mail, news" in output
    remaining = Job.objects.with_status("pending").values_list("type_name", "queue")
    assert sorted(remaining) == [("other.job", "mail"), ("worker.greet", "default")] + [("worker.greet", "mail")] * 2


@pytest.mark.parametrize("options", [["--queue", "nmae"], ["--queue-slots", "nmae=2"], ["--queue", "default"]])
def test_a_queue_that_nothing_uses_is_served_with_a_warning(greet, run, options):
    greet.enqueue("world", queue="name")
    errors = StringIO()
    run(*options, stderr=errors)
    warning = "No jobs are in the queue 'nmae', and no worker or job type names it. Did you mean 'name'?\n"
    assert errors.getvalue() == ("" if "default" in options else warning)


def test_a_pattern_that_no_type_matches_is_used_with_a_warning(greet, run):
    errors = StringIO()
    run("--type", "worker.*", "--type", "wroker.greet", stderr=errors)
    warning = "No job type, record worker or enqueued task matches 'wroker.greet'. Did you mean 'worker.greet'?\n"
    assert errors.getvalue() == warning


def test_worker_that_gives_up_exits_with_code_1(greet, run, store, monkeypatch):
    monkeypatch.setattr("django_jobchains.worker.threads.LAST_WAIT_SECONDS", 0.01)
    failing(store, monkeypatch, *[ValueError("a bug")] * 20)
    with pytest.raises(SystemExit) as caught:
        run()
    assert caught.value.code == 1
