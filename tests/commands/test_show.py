"""``show``: a chain as a tree, shortened to a readable size, in a constant number of statements for each level."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains, context
from django_jobchains.models import Job
from django_jobchains.processors import Backoff
from django_jobchains.store.rows import Effects
from tests.attempts.test_bad_input import overwrite_input
from tests.support.chains import STATES, attempt, completed, failed, go_on, mail, pending, ship
from tests.support.jobs import entries, expire, failed_try, finished, is_a_minute, next_job, start_a_minute_earlier

pytestmark = pytest.mark.django_db


@pytest.fixture
def shown(run):
    """Return a chain as JSON."""
    return lambda *words: run("show", *words, "--format", "json").json


def long_chain(store, steps):
    chain = ship.enqueue()
    job = attempt(store, chain)
    for _ in range(steps - 1):
        store.attempts.finish([finished(job, None, next_job(job))])
        [job] = store.jobs.claim("worker-1", 1, {"shop.mail": 60})
    return chain


def test_a_chain_shows_its_steps_attempts_input_and_output(run, store):
    chain = ship.enqueue({"order": 5})
    store.attempts.reschedule([failed_try(attempt(store, chain), error="Timeout: the bank\nsecond line")])
    go_on(chain)
    chains.complete(chain.id, {"receipt": "A-1"})
    lines = run("show", chain.id).lines
    assert lines[0] == f"shop.ship {chain.id}"
    assert lines[1].strip().startswith("completed · created ")
    assert lines[1].endswith("2 steps")
    assert lines[2].split(maxsplit=1) == ["input", '{"order": 5}']
    assert lines[3].split(maxsplit=1) == ["output", '{"receipt": "A-1"}']
    assert lines[5].startswith("1 shop.ship continued · ")
    assert lines[6].strip().startswith("✗ 1 · ")
    assert lines[6].endswith("· Timeout: the bank")
    assert lines[7].startswith("2 shop.mail completed · ")
    assert "second line" not in "\n".join(lines)


def test_an_input_that_python_cannot_decode_is_not_shown(run, shown):
    chain = ship.enqueue()
    overwrite_input(chain, "1" * 5000)
    assert "<Exceeds the limit" in run("show", chain.id).out
    assert shown(chain.id)["input"].startswith("<Exceeds the limit")


def test_the_trace_of_a_job_is_shown_and_linked(run, shown, settings):
    trace_id = f"{7:032x}"
    with context.bound(traceparent=f"00-{trace_id}-{1:016x}-01"):
        traced = ship.enqueue()
    assert f"  trace   {trace_id}" in run("show", traced.id).lines
    assert shown(traced.id)["steps"][0]["trace_id"] == trace_id
    settings.JOBCHAINS = {"TRACE_URL": "https://traces.example.com/{trace_id}"}
    assert f"  trace   https://traces.example.com/{trace_id}" in run("show", traced.id).lines
    untraced = ship.enqueue()
    assert "trace " not in run("show", untraced.id).out
    assert shown(untraced.id)["steps"][0]["trace_id"] is None


def test_each_state_can_be_shown_in_the_same_form(run, store, shown):
    found = []
    for make in STATES.values():
        chain = make(store)
        found.append(shown(chain.id))
        assert (found[-1]["id"], found[-1]["status"]) == (str(chain.id), chain.refresh().status)
        lines = run("show", chain.id, width=40).lines
        assert all(len(line) <= 40 or str(chain.id) in line or line.strip().count("-") == 4 for line in lines)
    assert len({tuple(one) for one in found}) == len({tuple(one["steps"][0]) for one in found}) == 1


def test_a_requested_job_is_marked_in_its_chain(run, store):
    chain = long_chain(store, 30)
    lines = run("show", Job.objects.get(chain_index=15).id, "--steps", "4").lines
    assert lines[0] == f"shop.ship {chain.id}"
    [marked] = [line for line in lines if "← requested" in line]
    assert marked.startswith("16 shop.mail")
    omitted = [line for line in lines if "not shown" in line]
    assert omitted == [f"… {number} steps not shown (--steps)" for number in (13, 12)]


def test_only_the_first_and_last_steps_of_a_long_chain_are_shown(run, store, shown):
    chain = long_chain(store, 100)
    lines = run("show", chain.id).lines
    assert [int(line.split()[0]) for line in lines if line[:1].isdecimal()] == [*range(1, 11), *range(91, 101)]
    assert "… 80 steps not shown (--steps)" in lines
    assert len([line for line in run("show", chain.id, "--steps", "1000").lines if line[:1].isdecimal()]) == 100
    found = shown(chain.id)
    assert (len(found["steps"]), found["step_count"]) == (20, 100)


def test_only_some_of_many_blockers_are_shown_open_ones_first(run, store, shown):
    still_open = pending(store)
    chain = mail.enqueue(blockers=[*(completed(store) for _ in range(20)), still_open])
    lines = run("show", chain.id).lines
    assert lines[lines.index("    waits for 1 of 21 chains:") + 1].strip() == str(still_open.id)
    assert "      … 16 chains not shown (--blockers, --depth)" in lines
    step = shown(chain.id, "--blockers", "3")["steps"][0]
    assert (step["blocker_count"], step["open_blocker_count"], len(step["blockers"])) == (21, 1, 3)
    assert step["blockers"][0]["id"] == str(still_open.id)
    assert shown(chain.id, "--blockers", "0")["steps"][0]["blockers"] == []


def test_blockers_of_blockers_are_shown_once_and_to_a_depth(run):
    first = ship.enqueue()
    second = ship.enqueue(blockers=[first])
    third = mail.enqueue(blockers=[first, second])
    fourth = mail.enqueue(blockers=[third])
    whole = run("show", fourth.id, "--depth", "5").out
    assert all(str(chain.id) in whole for chain in (first, second, third, fourth))
    assert "shown elsewhere" in whole
    assert str(first.id) not in run("show", fourth.id, "--depth", "1").out
    assert "waits for 1 of 1 chain:" in run("show", fourth.id, "--depth", "0").out


def test_chains_that_need_the_chain_are_listed(run, store):
    chain = pending(store)
    dependents = [mail.enqueue(blockers=[chain]) for _ in range(7)]
    out = run("show", chain.id).out
    assert (out.count("needed by shop.mail"), sum(str(chain.id) in out for chain in dependents)) == (5, 5)
    assert "needed by more" in out


def test_only_the_last_of_many_attempts_are_shown(run, store, shown):
    chain = ship.enqueue()
    for number in range(12):
        store.attempts.reschedule([failed_try(attempt(store, chain), error=f"Error: {number}")])
    lines = run("show", chain.id).lines
    assert [line.rsplit(" ", 1)[1] for line in lines if "✗" in line] == ["7", "8", "9", "10", "11"]
    assert "    … 7 earlier attempts" in lines
    assert len(shown(chain.id, "--attempts", "100")["steps"][0]["failed_attempts"]) == 12


def test_verbose_shows_tracebacks_and_whole_values(run, store):
    chain = ship.enqueue({"text": "x" * 5_000})
    traceback = "Traceback (most recent call last):\n  deep\x1b[31m inside"
    store.attempts.fail([failed_try(attempt(store, chain), traceback=traceback)])
    quiet = run("show", chain.id)
    assert "deep" not in quiet.out
    assert max(map(len, quiet.lines)) < 300
    for words in (["--verbose"], ["--verbosity", "2"]):
        out = run("show", chain.id, *words).out
        assert "deep [31m inside" in out
        assert "x" * 5_000 in out


@pytest.mark.parametrize("size", [2, 25])
def test_the_number_of_statements_depends_only_on_the_levels(run, store, size):
    leaves = [failed(store) for _ in range(size)]
    middle = [mail.enqueue(blockers=leaves) for _ in range(size)]
    top = ship.enqueue(blockers=middle)
    for _ in range(size):
        go_on(top)
    with CaptureQueriesContext(connection) as queries:
        run("show", top.id, "--blockers", "100", "--steps", "100")
    assert len(queries) <= 2 + 3 * 6


def test_progress_and_the_last_log_lines_are_shown(run, store, shown):
    chain = ship.enqueue()
    job = attempt(store, chain)
    store.logs.write([entries(job, *[f"line {n}" for n in range(9)], "two\nlines \x1b[31m", progress=0.4)])
    lines = [line.strip() for line in run("show", chain.id, "--lines", "2").lines]
    place = lines.index("… 8 earlier log lines (--lines)")
    assert lines[place - 1].startswith("progress 40% 40% (")
    assert lines[place + 1].endswith("info · line 8")
    assert lines[place + 2].endswith("info · two")
    assert any(line.strip().startswith("lines") for line in run("show", chain.id, "--verbose").lines)
    assert "\x1b" not in run("show", chain.id, "--verbose").out
    assert "line 8" not in run("show", chain.id, "--lines", "0").out
    step = shown(chain.id, "--lines", "1")["steps"][0]
    assert (step["progress"]["fraction"], step["progress"]["text"]) == (0.4, "40%")
    [line] = step["log_lines"]
    assert (line["attempt"], line["position"], line["level"], line["fields"]) == (1, 9, "info", None)


def test_omitted_lines_are_counted_and_progress_of_earlier_attempts_is_hidden(run, store, shown):
    chain = ship.enqueue()
    job = attempt(store, chain)
    store.logs.write([entries(job, "first", progress=0.9), entries(job, "last", first=3)])
    assert "    … 2 lines omitted" in run("show", chain.id).lines
    store.attempts.reschedule([failed_try(job)])
    store.logs.write([entries(attempt(store, chain), "again")])
    lines = run("show", chain.id).lines
    assert [line.split(" · ")[1] for line in lines if "info" in line] == ["again"]
    assert "progress" not in "".join(lines)
    assert shown(chain.id)["steps"][0]["progress"] is None


def test_a_crash_shows_its_kind_and_the_last_lines_of_stderr_redacted(run, store):
    chain = ship.enqueue()
    crash = {"error": "ChildCrashed: SIGSEGV", "traceback": "first\nsecond\npassword=secret-7\nlast", "kind": "crash"}
    store.attempts.reschedule([failed_try(attempt(store, chain), **crash)])
    lines = [line.strip() for line in run("show", chain.id).lines]
    place = next(number for number, line in enumerate(lines) if line.startswith("✗ 1"))
    assert lines[place].endswith(" · crash · ChildCrashed: SIGSEGV")
    assert (lines[place + 1], lines[place + 3]) == ("second", "last")
    assert "secret-7" not in "".join(lines)


def test_a_job_that_expires_shows_when_and_then_that_it_has_expired(run, shown, store):
    chain = ship.enqueue(delay=60, expires=timedelta(hours=2))
    assert "· expires in 2 h" in run("show", chain.id).lines[4]
    [step] = shown(chain.id)["steps"]
    assert (step["is_expired"], step["expires_at"] > step["run_at"]) == (False, True)
    store.db.ahead_seconds = 3 * 3600
    store.chains.expire(10, Effects())
    lines, found = run("show", chain.id).lines, shown(chain.id)
    assert lines[1].strip().startswith("expired · created ")
    assert lines[4].startswith("1 shop.ship expired · ")
    assert "expires" not in lines[4]
    assert (found["status"], found["is_expired"], found["steps"][0]["is_expired"]) == ("cancelled", True, True)
    assert run("list").lines[1].split()[1] == run("list", "--jobs").lines[1].split()[1] == "expired"


# Durations: how long attempts took, as far as that is known


def completes(store, chain, job):
    store.attempts.finish([finished(job)])


def is_retried(store, chain, job):
    store.attempts.reschedule([failed_try(job)])


def fails(store, chain, job):
    store.attempts.fail([failed_try(job)])


def stops_when_cancelled(store, chain, job):
    chains.cancel(chain)
    Job.objects.filter(pk=job.id).update(cancel_requested_at=chain.created_at)
    store.attempts.hand_back([job.key])


def is_lost(store, chain, job):
    expire(job)
    assert store.leases.reap(10, Backoff(), 10)


def completes_without_a_worker(store, chain, job):
    chains.complete(chain)


def is_completed_after_a_failure(store, chain, job):
    store.attempts.reschedule([failed_try(job)])
    chains.complete(chain)


def is_cancelled_after_a_reschedule(store, chain, job):
    store.attempts.hand_back([job.key])
    chains.cancel(chain)


KNOWN = [completes, is_retried, fails, stops_when_cancelled]
UNKNOWN = [is_lost, completes_without_a_worker, is_completed_after_a_failure, is_cancelled_after_a_reschedule]


@pytest.mark.parametrize("end", [*KNOWN, *UNKNOWN])
def test_the_duration_of_the_last_attempt_is_shown_if_it_is_known(run, store, shown, end):
    chain = ship.enqueue()
    job = attempt(store, chain)
    start_a_minute_earlier(job.id)
    end(store, chain, job)
    step, lines = shown(chain.id)["steps"][0], run("show", chain.id).lines
    first = next(line for line in lines if line.startswith("1 shop.ship"))
    if end in KNOWN:
        assert is_a_minute(step["duration_seconds"])
        assert ("· ran 1 min" in first) == (step["status"] in ("completed", "failed", "cancelled"))
    else:
        assert step["duration_seconds"] is None
        assert "ran" not in first.split(" · ")[-1]
    for failed_attempt in step["failed_attempts"]:
        [line] = [line for line in lines if "✗ 1" in line]
        assert is_a_minute(failed_attempt["duration_seconds"]) == (end is not is_lost) == ("· 1 min" in line)
        assert failed_attempt["started_at"] < failed_attempt["finished_at"]


def test_a_running_attempt_has_no_duration_yet(run, store, shown):
    chain = ship.enqueue()
    start_a_minute_earlier(attempt(store, chain).id)
    assert shown(chain.id)["steps"][0]["duration_seconds"] is None
    assert "running · for 1 min" in run("show", chain.id).out
