"""``show``: a chain as a tree, shortened to a readable size, in a constant number of statements for each level."""

from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains, context
from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.support.chains import STATES, attempt, completed, failed, go_on, mail, pending, ship
from tests.support.jobs import entries, failed_try, finished, next_job

pytestmark = pytest.mark.django_db


def long_chain(store: Store, steps: int) -> chains.Chain:
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


def test_the_trace_of_a_job_is_shown_and_linked(run, settings):
    trace_id = f"{7:032x}"
    with context.bound(traceparent=f"00-{trace_id}-{1:016x}-01"):
        traced = ship.enqueue()
    assert f"  trace   {trace_id}" in run("show", traced.id).lines
    assert run("show", traced.id, "--format", "json").json["steps"][0]["trace_id"] == trace_id
    settings.JOBCHAINS = {"TRACE_URL": "https://traces.example.com/{trace_id}"}
    assert f"  trace   https://traces.example.com/{trace_id}" in run("show", traced.id).lines
    untraced = ship.enqueue()
    assert "trace " not in run("show", untraced.id).out
    assert run("show", untraced.id, "--format", "json").json["steps"][0]["trace_id"] is None


@pytest.mark.parametrize("state", STATES)
def test_each_state_can_be_shown(run, store, state):
    chain = STATES[state](store)
    shown = run("show", chain.id, "--format", "json").json
    assert (shown["id"], shown["status"]) == (str(chain.id), chain.refresh().status)
    assert run("show", chain.id).code == 0
    lines = run("show", chain.id, width=40).lines
    assert all(len(line) <= 40 or str(chain.id) in line or line.strip().count("-") == 4 for line in lines)


def test_a_requested_job_is_marked_in_its_chain(run, store):
    chain = long_chain(store, 30)
    job = Job.objects.get(chain_index=15)
    lines = run("show", job.id, "--steps", "4").lines
    assert lines[0] == f"shop.ship {chain.id}"
    [marked] = [line for line in lines if "← requested" in line]
    assert marked.startswith("16 shop.mail")
    assert [line for line in lines if "not shown" in line] == [
        "… 13 steps not shown (--steps)",
        "… 12 steps not shown (--steps)",
    ]


def test_an_unknown_id_is_an_error(run):
    done = run("show", UUID(int=5))
    assert (done.code, done.error) == (1, f"No chain or job {UUID(int=5)}: it was never committed, or it was deleted.")
    assert "'5' is not an id" in run("show", "5").error


def test_only_the_first_and_last_steps_of_a_long_chain_are_shown(run, store):
    chain = long_chain(store, 100)
    lines = run("show", chain.id).lines
    steps = [int(line.split()[0]) for line in lines if line[:1].isdecimal()]
    assert steps == [*range(1, 11), *range(91, 101)]
    assert "… 80 steps not shown (--steps)" in lines
    assert len([line for line in run("show", chain.id, "--steps", "1000").lines if line[:1].isdecimal()]) == 100
    assert len(run("show", chain.id, "--format", "json").json["steps"]) == 20
    assert run("show", chain.id, "--format", "json").json["step_count"] == 100


def test_only_some_of_many_blockers_are_shown_open_ones_first(run, store):
    ended = [completed(store) for _ in range(20)]
    still_open = pending(store)
    chain = mail.enqueue(blockers=[*ended, still_open])
    lines = run("show", chain.id).lines
    assert "    waits for 1 of 21 chains:" in lines
    assert lines[lines.index("    waits for 1 of 21 chains:") + 1].strip() == str(still_open.id)
    assert "      … 16 chains not shown (--blockers, --depth)" in lines
    step = run("show", chain.id, "--blockers", "3", "--format", "json").json["steps"][0]
    assert (step["blocker_count"], step["open_blocker_count"], len(step["blockers"])) == (21, 1, 3)
    assert step["blockers"][0]["id"] == str(still_open.id)
    assert run("show", chain.id, "--blockers", "0", "--format", "json").json["steps"][0]["blockers"] == []


def test_blockers_of_blockers_are_shown_once_and_to_a_depth(run, store):
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
    assert out.count("needed by shop.mail") == 5
    assert "needed by more" in out
    assert sum(str(chain.id) in out for chain in dependents) == 5


def test_only_the_last_of_many_attempts_are_shown(run, store):
    chain = ship.enqueue()
    for number in range(12):
        store.attempts.reschedule([failed_try(attempt(store, chain), error=f"Error: {number}")])
    lines = run("show", chain.id).lines
    assert [line.rsplit(" ", 1)[1] for line in lines if "✗" in line] == ["7", "8", "9", "10", "11"]
    assert "    … 7 earlier attempts" in lines
    assert len(run("show", chain.id, "--attempts", "100", "--format", "json").json["steps"][0]["failed_attempts"]) == 12


def test_verbose_shows_tracebacks_and_whole_values(run, store):
    chain = ship.enqueue({"text": "x" * 5_000})
    store.attempts.fail(
        [failed_try(attempt(store, chain), traceback="Traceback (most recent call last):\n  deep\x1b[31m inside")]
    )
    quiet = run("show", chain.id).out
    assert "deep" not in quiet
    assert max(map(len, quiet.splitlines())) < 300
    for words in (["--verbose"], ["--verbosity", "2"]):
        out = run("show", chain.id, *words).out
        assert "deep [31m inside" in out
        assert "x" * 5_000 in out


def test_json_of_every_state_has_the_same_keys(run, store):
    shown = [run("show", make(store).id, "--format", "json").json for make in STATES.values()]
    assert len({tuple(one) for one in shown}) == len({tuple(one["steps"][0]) for one in shown}) == 1


@pytest.mark.parametrize("size", [2, 25])
def test_the_number_of_statements_depends_only_on_the_levels(run, store, size):
    leaves = [failed(store) for _ in range(size)]
    middle = [mail.enqueue(blockers=leaves) for _ in range(size)]
    top = ship.enqueue(blockers=middle)
    complete_steps(top, size)
    with CaptureQueriesContext(connection) as queries:
        run("show", top.id, "--blockers", "100", "--steps", "100")
    assert len(queries) <= 2 + 3 * 6


def complete_steps(chain: chains.Chain, steps: int) -> None:
    """Complete steps of a blocked chain by hand."""
    for _ in range(steps):
        go_on(chain)


@pytest.mark.slow
def test_a_chain_of_ten_thousand_steps_and_a_thousand_blockers_fits_on_a_screen(run, store):
    chain = long_chain(store, 1)
    job: Any = Job.objects.get()
    Job.objects.filter(pk=job.pk).update(status="completed", finished_at=job.created_at)
    many = [
        Job(chain_id=chain.id, chain_index=place + 1, chain_type_name="shop.ship", type_name="shop.mail",
            queue="default", status="completed" if place < 9_998 else "pending", run_at=job.run_at,
            created_at=job.created_at, finished_at=job.created_at if place < 9_998 else None)
        for place in range(9_999)
    ]  # fmt: skip
    Job.objects.bulk_create(many, batch_size=500)
    dependent = mail.enqueue(blockers=[*chains.enqueue_many([ship.item() for _ in range(999)]), chain])
    assert len(run("show", chain.id).lines) < 60
    assert len(run("show", dependent.id).lines) < 60


def test_progress_and_the_last_log_lines_are_shown(run, store):
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
    step = run("show", chain.id, "--format", "json", "--lines", "1").json["steps"][0]
    assert (step["progress"]["fraction"], step["progress"]["text"]) == (0.4, "40%")
    [line] = step["log_lines"]
    assert (line["attempt"], line["position"], line["level"], line["fields"]) == (1, 9, "info", None)


def test_omitted_lines_are_counted_and_progress_of_earlier_attempts_is_hidden(run, store):
    chain = ship.enqueue()
    job = attempt(store, chain)
    store.logs.write([entries(job, "first", progress=0.9), entries(job, "last", first=3)])
    assert "    … 2 lines omitted" in run("show", chain.id).lines
    store.attempts.reschedule([failed_try(job)])
    again = attempt(store, chain)
    assert "progress" not in run("show", chain.id).out
    assert run("show", chain.id, "--format", "json").json["steps"][0]["progress"] is None
    store.logs.write([entries(again, "again")])
    assert [line.split(" · ")[1] for line in run("show", chain.id).lines if "info" in line] == ["again"]


def test_a_crash_shows_its_kind_and_the_last_lines_of_stderr_redacted(run, store):
    chain = ship.enqueue()
    stderr = "first\nsecond\npassword=secret-7\nlast"
    store.attempts.reschedule(
        [failed_try(attempt(store, chain), error="ChildCrashed: SIGSEGV", traceback=stderr, kind="crash")]
    )
    lines = [line.strip() for line in run("show", chain.id).lines]
    place = next(number for number, line in enumerate(lines) if line.startswith("✗ 1"))
    assert lines[place].endswith(" · crash · ChildCrashed: SIGSEGV")
    assert lines[place + 1] == "second"
    assert lines[place + 3] == "last"
    assert "secret-7" not in "".join(lines)
