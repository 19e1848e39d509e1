"""``list``: chains or jobs, what was asked for, page by page, as a table, as JSON or as ids."""

from typing import Any

import pytest

from django_jobchains.models import Chain, Job
from django_jobchains.store import Store
from tests.commands.conftest import Done, Run
from tests.interventions.chains_at import (
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
from tests.store.jobs import failed_try

pytestmark = pytest.mark.django_db


def ids(done: Done) -> list[str]:
    return done.out.split()


def text(*rows: Any) -> list[str]:
    return [str(row.id) for row in rows]


def test_chains_are_listed_the_newest_first(run: Run, store: Store) -> None:
    made = [pending(store), failed(store), completed(store)]
    done = run("list")
    assert done.code == 0
    assert done.lines[0].split()[:3] == ["CHAIN", "STATUS", "TYPE"]
    assert [line.split()[:3] for line in done.lines[1:]] == [
        [str(chain.id), chain.refresh().status, "shop.ship"] for chain in reversed(made)
    ]
    assert "Boom: no" in done.lines[2]
    assert run("list", "--oldest", "--format", "ids").out.split() == text(*made)


def test_a_table_of_nothing_says_so(run: Run) -> None:
    assert run("list").out == "No chains.\n"
    assert run("list", "--jobs", "--status", "failed").out == "No jobs.\n"
    assert run("list", "--format", "json").json == {"chains": [], "next": None}
    assert run("list", "--format", "ids").out == ""


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_the_word_that_people_know(run: Run, store: Store, state: str) -> None:
    chain = STATES[state](store)
    words = {"backing_off": "scheduled", "asked_to_stop": "stopping"}
    [line] = [line for line in run("list").lines if str(chain.id) in line]
    assert line.split()[1] == words.get(state, state)


def test_filters_are_for_status_type_openness_and_blocker(run: Run, store: Store) -> None:
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


def test_jobs_are_listed_by_their_own_type_and_step(run: Run, store: Store) -> None:
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


def test_pages_go_on_where_the_last_one_ended(run: Run, store: Store) -> None:
    made = text(*(pending(store) for _ in range(5)))[::-1]
    table = run("list", "--limit", "2")
    assert [line.split()[0] for line in table.lines[1:3]] == made[:2]
    cursor = table.lines[-1].removeprefix("More: --after ")
    second = run("list", "--limit", "2", "--after", cursor, "--format", "json").json
    assert [row["id"] for row in second["chains"]] == made[2:4]
    last = run("list", "--limit", "2", "--after", second["next"], "--format", "ids")
    assert (ids(last), last.notes) == (made[4:], "")
    more = run("list", "--limit", "2", "--format", "ids")
    assert "2 ids, there are more: --after" in more.notes


def test_a_limit_of_several_pages_is_one_list(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobchains.console.listing.MOST_ON_A_PAGE", 2)
    made = text(*(pending(store) for _ in range(7)))[::-1]
    assert ids(run("list", "--limit", "6", "--format", "ids")) == made[:6]
    assert ids(run("list", "--limit", "70", "--format", "ids")) == made


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--after", "nonsense"], "'nonsense' is no cursor of such a page: start again without one"),
        (["--status", "done"], "'done' is no status: blocked, pending, running"),
        (["--limit", "0"], "whole number from 1"),
        (["--limit", "100001"], "at most 100,000 rows"),
        (["--blocked-by", "5"], "'5' is no id"),
        (["--format", "xml"], "invalid choice"),
        (["--database", "nowhere"], "No database 'nowhere' in DATABASES. Known: default"),
    ],
)
def test_wrong_words_are_an_error_that_says_what_to_do(run: Run, words: list[str], message: str) -> None:
    done = run("list", *words)
    assert done.code > 0
    assert message in done.error


def test_json_has_the_same_keys_for_every_state_and_times_in_utc(run: Run, store: Store, settings: Any) -> None:
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
def test_a_row_is_as_wide_as_the_terminal_and_has_its_whole_id(run: Run, store: Store, width: int) -> None:
    chain = failed(store)
    Job.objects.update(chain_type_name="shop." + "long_" * 30, last_error="Error: " + "words " * 40)
    done = run("list", width=width)
    assert str(chain.id) in done.out
    assert max(map(len, done.lines)) <= width
    assert ("LAST ERROR" in done.out) == (width >= 100)


def test_what_the_data_says_does_not_drive_the_terminal(run: Run, store: Store) -> None:
    chain = ship.enqueue()
    store.fail([failed_try(attempt(store, chain), error="\x1b[2J\x9b31m\x07\r\u202egnp.exe")])
    for words in (["list"], ["list", "--jobs"], ["list", "--format", "json"], ["show", chain.id], ["status"]):
        out = run(*words).out
        assert not set(out) & set("\x1b\x9b\x07\r\u202e"), words


def test_it_takes_one_statement_a_page(run: Run, store: Store, django_assert_num_queries: Any) -> None:
    for _ in range(5):
        go_on(scheduled(store), delay=5)
        mail.enqueue()
    for words in (["list"], ["list", "--jobs"], ["list", "--format", "json", "--status", "pending"]):
        with django_assert_num_queries(1):
            run(*words)
