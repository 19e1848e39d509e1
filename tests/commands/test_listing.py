"""``list``: chains or jobs with filters, in pages, as a table, as JSON or as ids."""

from datetime import timedelta
from typing import Any

import pytest

from django_jobchains.models import Chain, Job
from tests.commands.conftest import Done
from tests.support.chains import (
    STATES,
    attempt,
    blocked,
    completed,
    failed,
    go_on,
    mail,
    pending,
    scheduled,
    ship,
)
from tests.support.jobs import failed_try

pytestmark = pytest.mark.django_db


def ids(done: Done) -> list[str]:
    return done.out.split()


def text(*rows: Any) -> list[str]:
    return [str(row.id) for row in rows]


def test_chains_are_listed_the_newest_first(run, store):
    made = [pending(store), failed(store), completed(store)]
    done = run("list")
    assert done.code == 0
    assert done.lines[0].split()[:3] == ["CHAIN", "STATUS", "TYPE"]
    assert [line.split()[:3] for line in done.lines[1:]] == [
        [str(chain.id), chain.refresh().status, "shop.ship"] for chain in reversed(made)
    ]
    assert "Boom: no" in done.lines[2]
    assert run("list", "--oldest", "--format", "ids").out.split() == text(*made)


def test_an_empty_list_has_a_message(run):
    assert run("list").out == "No chains.\n"
    assert run("list", "--jobs", "--status", "failed").out == "No jobs.\n"
    assert run("list", "--format", "json").json == {"chains": [], "next": None}
    assert run("list", "--format", "ids").out == ""


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_its_word(run, store, state):
    chain = STATES[state](store)
    words = {"backing_off": "scheduled", "asked_to_stop": "stopping"}
    [line] = [line for line in run("list").lines if str(chain.id) in line]
    assert line.split()[1] == words.get(state, state)


def test_filters_are_for_status_type_openness_and_blocker(run, store):
    dependent, done, other = blocked(store), completed(store), failed(store)
    [blocker] = Chain.objects.of_type("shop.mail")
    wanted = {
        ("--status", "failed"): [other],
        ("--status", "failed", "--status", "completed"): [other, done],
        ("--type", "shop.mail"): [blocker],
        ("--type", "shop.mail", "--type", "shop.ship", "--open"): [dependent, blocker],
        ("--open",): [dependent, blocker],
        ("--blocked-by", str(blocker.id)): [dependent],
        ("--type", "shop.none"): [],
    }
    for words, rows in wanted.items():
        assert ids(run("list", *words, "--format", "ids")) == text(*rows), words


def test_jobs_are_listed_by_their_own_type_and_step(run, store):
    chain = ship.enqueue()
    go_on(chain)
    go_on(chain)
    jobs = list(Job.objects.order_by("-chain_index"))
    assert ids(run("list", "--jobs", "--format", "ids")) == text(*jobs)
    assert ids(run("list", "--jobs", "--type", "shop.ship", "--format", "ids")) == [str(chain.id)]
    rows = run("list", "--jobs", "--format", "json").json["jobs"]
    assert [(row["step"], row["chain"], row["type"]) for row in rows] == [
        (3, str(chain.id), "shop.mail"),
        (2, str(chain.id), "shop.mail"),
        (1, str(chain.id), "shop.ship"),
    ]


def test_jobs_are_listed_by_the_type_of_their_chain(run):
    chain = ship.enqueue()
    go_on(chain)
    mail.enqueue()
    jobs = Job.objects.filter(chain_id=chain.id).order_by("-chain_index")
    assert ids(run("list", "--jobs", "--chain-type", "shop.ship", "--format", "ids")) == text(*jobs)
    assert ids(run("list", "--chain-type", "shop.ship", "--format", "ids")) == [str(chain.id)]


def test_chains_that_are_blockers_are_hidden(run, store):
    dependent = blocked(store)
    assert ids(run("list", "--roots", "--format", "ids")) == [str(dependent.id)]


@pytest.mark.parametrize("words", [[], ["--jobs"]])
def test_rows_are_listed_by_the_time_of_their_creation(run, store, words, settings):
    made = [pending(store), pending(store), pending(store)]
    for number, chain in enumerate(made):
        Job.objects.filter(pk=chain.id).update(created_at=chain.created_at + timedelta(seconds=number))
    first, second, third = (str(chain.refresh().created_at) for chain in made)
    assert ids(run("list", *words, "--created-after", second, "--oldest", "--format", "ids")) == text(*made[1:])
    assert ids(run("list", *words, "--created-before", second, "--format", "ids")) == text(made[0])
    between = ("--created-after", first, "--created-before", third)
    assert ids(run("list", *words, *between, "--format", "ids")) == text(*made[1::-1])
    settings.TIME_ZONE = "Pacific/Kiritimati"  # a day begins there 14 hours earlier than in UTC
    tomorrow = (made[0].created_at + timedelta(days=2)).date().isoformat()
    assert ids(run("list", *words, "--created-after", tomorrow, "--format", "ids")) == []


def test_a_cursor_continues_after_the_last_page(run, store):
    made = text(*(pending(store) for _ in range(5)))[::-1]
    table = run("list", "--limit", "2")
    assert [line.split()[0] for line in table.lines[1:3]] == made[:2]
    cursor = table.lines[-1].removeprefix("More: --after ")
    second = run("list", "--limit", "2", "--after", cursor, "--format", "json").json
    assert [row["id"] for row in second["chains"]] == made[2:4]
    last = run("list", "--limit", "2", "--after", second["next"], "--format", "ids")
    assert (ids(last), last.notes) == (made[4:], "")
    more = run("list", "--limit", "2", "--format", "ids")
    assert "2 ids, more with --after" in more.notes


def test_a_large_limit_reads_several_pages(run, store, monkeypatch):
    monkeypatch.setattr("django_jobchains.cli.list.MAX_PAGE_SIZE", 2)
    made = text(*(pending(store) for _ in range(7)))[::-1]
    assert ids(run("list", "--limit", "6", "--format", "ids")) == made[:6]
    assert ids(run("list", "--limit", "70", "--format", "ids")) == made


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--after", "nonsense"], "'nonsense' is not a cursor of these pages. Start again without one"),
        (["--status", "done"], "'done' is not a status: choose from blocked, pending, running"),
        (["--limit", "0"], "integer from 1"),
        (["--limit", "100001"], "integer from 1 to 100,000"),
        (["--blocked-by", "5"], "'5' is not an id"),
        (["--created-after", "yesterday"], "'yesterday' is not a time: write for example 2026-11-22"),
        (["--format", "xml"], "invalid choice"),
        (["--database", "nowhere"], "DATABASES has no alias 'nowhere'. Known: default"),
    ],
)
def test_an_invalid_argument_is_an_error_that_names_the_remedy(run, words, message):
    done = run("list", *words)
    assert done.code > 0
    assert message in done.error


def test_json_has_the_same_keys_for_every_state_and_times_in_utc(run, store, settings):
    settings.TIME_ZONE = "Asia/Kathmandu"
    for make in STATES.values():
        make(store)
    rows = run("list", "--format", "json").json["chains"]
    assert len({tuple(row) for row in rows}) == len({tuple(row["current_job"]) for row in rows}) == 1
    for row in rows:
        chain = Chain.objects.get(pk=row["id"])
        assert row["created_at"] == chain.created_at.isoformat().replace("+00:00", "Z")
        assert row["current_job"]["run_at"].endswith("Z")


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_row_fits_the_terminal_and_contains_the_whole_id(run, store, width):
    chain = failed(store)
    Job.objects.update(chain_type_name="shop." + "long_" * 30, last_error="Error: " + "words " * 40)
    done = run("list", width=width)
    assert str(chain.id) in done.out
    assert max(map(len, done.lines)) <= width
    assert ("LAST ERROR" in done.out) == (width >= 100)


def test_control_characters_in_data_are_not_printed(run, store):
    chain = ship.enqueue()
    store.attempts.fail([failed_try(attempt(store, chain), error="\x1b[2J\x9b31m\x07\r\u202egnp.exe")])
    for words in (["list"], ["list", "--jobs"], ["list", "--format", "json"], ["show", chain.id], ["status"]):
        out = run(*words).out
        assert not set(out) & set("\x1b\x9b\x07\r\u202e"), words


def test_a_page_takes_one_statement(run, store, django_assert_num_queries):
    for _ in range(5):
        go_on(scheduled(store), delay=5)
        mail.enqueue()
    for words in (["list"], ["list", "--jobs"], ["list", "--format", "json", "--status", "pending"]):
        with django_assert_num_queries(1):
            run(*words)
