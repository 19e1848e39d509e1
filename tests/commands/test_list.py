"""``list``: chains or jobs with filters, in pages, as a table, as JSON or as ids."""

from datetime import timedelta

import pytest

from django_jobchains.models import Chain, Job
from tests.support.chains import STATES, attempt, blocked, completed, failed, go_on, mail, pending, scheduled, ship
from tests.support.jobs import failed_try

pytestmark = pytest.mark.django_db


@pytest.fixture
def listed(run):
    """Return the ids that a call lists."""
    return lambda *words: run("list", *words, "--format", "ids").out.split()


def text(*rows):
    return [str(row.id) for row in rows]


def test_chains_are_listed_the_newest_first(run, store, listed):
    made = [pending(store), failed(store), completed(store)]
    done = run("list")
    assert (done.code, done.lines[0].split()[:3]) == (0, ["CHAIN", "STATUS", "TYPE"])
    assert [line.split()[:3] for line in done.lines[1:]] == [
        [str(chain.id), chain.refresh().status, "shop.ship"] for chain in reversed(made)
    ]
    assert "Boom: no" in done.lines[2]
    assert listed("--oldest") == text(*made)


def test_filters_are_for_status_type_incompleteness_and_blocker(store, listed):
    dependent, done, other = blocked(store), completed(store), failed(store)
    [blocker] = Chain.objects.of_type("shop.mail")
    wanted = {
        ("--status", "failed"): [other],
        ("--status", "failed", "--status", "completed"): [other, done],
        ("--type", "shop.mail"): [blocker],
        ("--type", "shop.mail", "--type", "shop.ship", "--incomplete"): [dependent, blocker],
        ("--incomplete",): [dependent, blocker],
        ("--blocked-by", str(blocker.id)): [dependent],
        ("--incomplete", "--roots"): [dependent],
        ("--type", "shop.none"): [],
    }
    for words, rows in wanted.items():
        assert listed(*words) == text(*rows), words


def test_every_shown_status_can_be_filtered_by(run, store, listed):
    later, first = ship.enqueue(delay=3600), ship.enqueue()
    go_on(first)
    last = Job.objects.get(chain_id=first.id, chain_index=1)
    assert listed("--status", "scheduled") == [str(later.id)]
    assert listed("--jobs", "--status", "continued", "--status", "scheduled") == text(first, later)
    assert listed("--jobs", "--status", "pending") == text(last, later)
    assert "--status continued is for jobs: add --jobs" in run("list", "--status", "continued").error
    assert "Choose from blocked, scheduled, pending" in run("list", "--status", "open").error
    assert "'canceled' is not a status. Did you mean 'cancelled'?" in run("list", "--status", "canceled").error


def test_a_type_that_no_app_declares_is_reported_if_nothing_is_found(run):
    mail.enqueue()
    done = run("list", "--type", "shop.shpi", "--chain-type", "shop.mail")
    assert (done.code, done.lines) == (0, ["No chains."])
    assert done.notes == "No app declares the type 'shop.shpi'. Did you mean 'shop.ship'?\n"
    assert run("list", "--type", "shop.mail", "--type", "shop.shpi").notes == ""


def test_jobs_are_listed_by_their_own_type_or_that_of_their_chain(run, listed):
    chain = ship.enqueue()
    go_on(chain)
    go_on(chain)
    jobs = list(Job.objects.order_by("-chain_index"))
    mail.enqueue()
    assert listed("--jobs", "--type", "shop.ship") == listed("--chain-type", "shop.ship") == [str(chain.id)]
    assert listed("--jobs", "--chain-type", "shop.ship") == text(*jobs)
    rows = run("list", "--jobs", "--chain-type", "shop.ship", "--format", "json").json["jobs"]
    assert [(row["step"], row["chain"], row["type"]) for row in rows] == [
        (3, str(chain.id), "shop.mail"),
        (2, str(chain.id), "shop.mail"),
        (1, str(chain.id), "shop.ship"),
    ]


@pytest.mark.parametrize("words", [[], ["--jobs"]])
def test_rows_are_listed_by_the_time_of_their_creation(store, listed, words, settings):
    made = [pending(store), pending(store), pending(store)]
    for number, chain in enumerate(made):
        Job.objects.filter(pk=chain.id).update(created_at=chain.created_at + timedelta(seconds=number))
    first, second, third = (str(chain.refresh().created_at) for chain in made)
    assert listed(*words, "--created-after", second, "--oldest") == text(*made[1:])
    assert listed(*words, "--created-before", second) == text(made[0])
    assert listed(*words, "--created-after", first, "--created-before", third) == text(*made[1::-1])
    settings.TIME_ZONE = "Pacific/Kiritimati"  # a day begins there 14 hours earlier than in UTC
    tomorrow = (made[0].created_at + timedelta(days=2)).date().isoformat()
    assert listed(*words, "--created-after", tomorrow) == []


def test_a_cursor_continues_after_the_last_page(run, store):
    made = text(*(pending(store) for _ in range(5)))[::-1]
    table = run("list", "--limit", "2")
    assert [line.split()[0] for line in table.lines[1:3]] == made[:2]
    cursor = table.lines[-1].removeprefix("More: --after ")
    second = run("list", "--limit", "2", "--after", cursor, "--format", "json").json
    assert [row["id"] for row in second["chains"]] == made[2:4]
    last = run("list", "--limit", "2", "--after", second["next"], "--format", "ids")
    assert (last.out.split(), last.notes) == (made[4:], "")
    assert "2 ids, more with --after" in run("list", "--limit", "2", "--format", "ids").notes


def test_a_large_limit_reads_several_pages(store, listed, monkeypatch):
    monkeypatch.setattr("django_jobchains.cli.list.MAX_PAGE_SIZE", 2)
    made = text(*(pending(store) for _ in range(7)))[::-1]
    assert (listed("--limit", "6"), listed("--limit", "70")) == (made[:6], made)


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


def test_rows_have_the_labels_of_their_types(run, store):
    ship.enqueue()
    assert "LABEL" not in run("list", width=200).out
    ship.enqueue({"to": "x", "password": "hunter2"})
    for options in ([], ["--jobs"]):
        assert "to: x, password: ********" in run("list", *options, width=200).out


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_row_fits_the_terminal_and_contains_the_whole_id(run, store, width):
    chain = failed(store)
    Job.objects.update(chain_type_name="shop." + "long_" * 30, last_error="Error: " + "words " * 40)
    done = run("list", width=width)
    assert str(chain.id) in done.out
    assert max(map(len, done.lines)) <= width
    assert ("LAST ERROR" in done.out) == (width >= 100)


def test_secrets_and_control_characters_in_data_are_not_printed(run, store):
    """They are in the input, the error and the traceback, beside values that are printed."""
    chain = ship.enqueue({"password": "hunter2", "to": "x"})
    error = "Boom: token='hunter2' \x1b[2J\x9b31m\x07\r\u202egnp.exe"
    traceback = f"File\n  login(password='hunter2')\n{error}"
    store.attempts.fail([failed_try(attempt(store, chain), error=error, traceback=traceback)])
    for words in ("list", "list --jobs", f"show {chain.id}", f"show {chain.id} --verbose", "status", "types"):
        for form in ("table", "json"):
            done = run(*words.split(), "--format", form)
            assert (done.code, set(done.out) & set("\x1b\x9b\x07\r\u202e"), "hunter2" in done.out) == (0, set(), False)
    [step] = run("show", chain.id, "--format=json").json["steps"]
    assert step["input"] == {"password": "********", "to": "x"}
    assert "token='********'" in run("show", chain.id).out


def test_a_page_takes_one_statement(run, store, django_assert_num_queries):
    for _ in range(5):
        go_on(scheduled(store), delay=5)
        mail.enqueue()
    for words in ("list", "list --jobs", "list --format json --status pending"):
        with django_assert_num_queries(1):
            run(*words.split())
