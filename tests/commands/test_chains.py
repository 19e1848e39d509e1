"""``enqueue``, ``complete``, ``retry``, ``cancel``, ``run-now``, ``delete`` and ``prune`` change chains and jobs."""

from datetime import UTC, datetime, timedelta

import pytest

from django_jobchains.chains import Chain, enqueue
from django_jobchains.cli import subcommand
from django_jobchains.db.ids import new_id
from django_jobchains.models import Job
from tests.store.test_retries import CONFLICT, failing
from tests.support.chains import STATES, cancelled, completed, failed, go_on, mail, pending, scheduled, ship

pytestmark = pytest.mark.django_db

FORMS = pytest.mark.parametrize("form", ["table", "json"])


@FORMS
@pytest.mark.django_db(transaction=True)
def test_enqueue_creates_a_chain_in_a_transaction_and_prints_its_id(run, settings, form):
    settings.JOBCHAINS = {"REQUIRE_TRANSACTION": True}
    done = run("enqueue", "shop.plain", "--format", form)
    chain = Chain.objects.get()
    assert (done.code, done.notes, chain.type_name, chain.status, chain.input) == (0, "", "shop.plain", "pending", None)
    if form == "json":
        assert done.json == {"chain": str(chain.id), "type": "shop.plain", "deduplicated": False}
    else:
        assert done.out == f"{chain.id}\n"


@pytest.mark.parametrize(
    ("words", "column", "value"),
    [
        ("shop.charge --input 5", "input", 5),
        ("shop.charge --input -", "input", 7),
        ("shop.charge --input 5", "queue", "bank"),
        ("shop.charge --input 5", "priority", 5),
        ("shop.charge --input 5", "max_attempts", None),
        ("shop.plain --queue slow", "queue", "slow"),
        ("shop.plain --priority -3", "priority", -3),
        ("shop.plain --run-at 2099-01-02T03:04Z", "run_at", datetime(2099, 1, 2, 3, 4, tzinfo=UTC)),
        # Without an offset, a time is in the time zone of the project.
        ("shop.plain --run-at 2099-01-02T09:00", "run_at", datetime(2099, 1, 2, tzinfo=UTC)),
    ],
)
def test_the_options_of_enqueue_replace_those_of_the_type(run, settings, words, column, value):
    settings.TIME_ZONE = "Asia/Tokyo"
    assert run("enqueue", *words.split(), stdin="7").code == 0
    assert getattr(Job.objects.get(), column) == value


def test_a_chain_can_be_delayed(run):
    run("enqueue", "shop.plain", "--delay", "90m")
    job = Job.objects.get()
    assert (job.run_at - job.created_at).total_seconds() == pytest.approx(5_400, abs=5)


@pytest.mark.parametrize("expires", ["90m", "5400", "5400.5", "2099-01-02T03:04Z"])
def test_a_chain_can_expire(run, expires):
    assert run("enqueue", "shop.plain", "--delay", "1h", "--expires", expires).code == 0
    job = Job.objects.get()
    wanted = datetime(2099, 1, 2, 3, 4, tzinfo=UTC) if "-" in expires else job.run_at + timedelta(minutes=90)
    assert abs(job.expires_at - wanted) < timedelta(seconds=1)


def test_a_known_key_returns_the_existing_chain(run):
    words = ("enqueue", "shop.plain", "--deduplicate", "daily")
    first, second, as_json = run(*words), run(*words), run(*words, "--format", "json").json
    assert (second.out, second.notes) == (first.out, "A chain with this key already exists. No chain was started.\n")
    assert (as_json["chain"], as_json["deduplicated"], Job.objects.count()) == (first.out.strip(), True, 1)


# retry, cancel, run-now and delete

#: For each verb: a state that it changes, the status afterwards, and the words in its output.
VERBS = {
    "retry": ("failed", "pending", "jobs retried"),
    "cancel": ("pending", "cancelled", "chains cancelled"),
    "run-now": ("scheduled", "pending", "jobs made due"),
    "delete": ("completed", None, "chains deleted"),
}
EACH_VERB = pytest.mark.parametrize("verb", VERBS)


def status(chain):
    return Job.objects.filter(chain_id=chain.id).order_by("-chain_index").values_list("status", flat=True).first()


@EACH_VERB
@FORMS
def test_a_verb_changes_the_given_chains_and_reports_it(run, store, verb, form):
    before, after, done_words = VERBS[verb]
    first, second, third, other = (STATES[before](store) for _ in range(4))
    untouched = status(other)
    done = run(verb, first.id, "-", "--format", form, stdin=f"{second.id}\n {third.id}\n{first.id}\n")
    assert (done.code, *map(status, (first, second, third, other))) == (0, after, after, after, untouched)
    if form == "json":
        name = done_words.partition(" ")[2].replace(" ", "_")
        assert done.json == {name: sorted(str(chain.id) for chain in (first, second, third)), "asked": 3}
    else:
        assert done.out == f"3 {done_words}.\n"


@EACH_VERB
def test_an_unknown_id_is_an_error_and_nothing_changes(run, store, verb):
    chain, unknown = STATES[VERBS[verb][0]](store), new_id()
    before, done = status(chain), run(verb, chain.id, unknown)
    assert (done.code, status(chain)) == (1, before)
    assert f"No chain or job {unknown}. Nothing was changed." in done.error


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_skipped_ids_are_counted_and_a_verb_that_changes_nothing_fails(run, store, verb):
    before, after, _ = VERBS[verb]
    changed, other = STATES[before](store), completed(store)
    done = run(verb, changed.id, other.id)
    assert (done.code, status(changed), status(other)) == (0, after, "completed")
    assert "1 id not changed" in done.out
    nothing = run(verb, other.id, "--format", "json")
    assert (nothing.code, nothing.json["asked"], nothing.error[:8]) == (1, 1, "Nothing ")


def test_standard_input_without_ids_is_an_error(run):
    assert run("retry", "-").error == "No ids on standard input."


def test_many_ids_are_changed_in_batches(run, store, monkeypatch):
    monkeypatch.setattr(subcommand, "BATCH_SIZE", 10)
    made = [pending(store) for _ in range(35)]
    done = run("cancel", "-", "--format", "json", stdin="\n".join(str(chain.id) for chain in made))
    assert len(done.json["cancelled"]) == done.json["asked"] == 35
    assert set(map(status, made)) == {"cancelled"}


@pytest.mark.parametrize("verb", ["run-now", "delete"])
def test_some_verbs_change_all_or_nothing(run, store, monkeypatch, verb):
    monkeypatch.setattr(subcommand, "BATCH_SIZE", 1)
    made = [scheduled(store), scheduled(store), cancelled(store)]
    if verb == "delete":
        mail.enqueue(blockers=made[1:2])
    run_at = set(Job.objects.values_list("id", "run_at"))
    done = run(verb, *[chain.id for chain in made])
    assert (done.code, set(Job.objects.values_list("id", "run_at"))) == (1, run_at)
    assert "before this error" not in done.error


def test_run_now_of_a_failed_job_names_the_remedy(run, store):
    done = run("run-now", failed(store).id)
    assert (done.code, "is failed, not pending: use chains.retry" in done.error) == (1, True)


def test_the_id_of_a_later_step_does_not_delete_its_chain(run):
    chain = ship.enqueue()
    go_on(chain)
    done = run("delete", chain.refresh().current_job_id)
    assert (done.code, f"a later step of chain {chain.id}" in done.error, Job.objects.count()) == (1, True, 2)


def test_cascade_deletes_a_chain_with_its_blockers(run):
    blocker = mail.enqueue()
    dependent = ship.enqueue(blockers=[blocker])
    refused = run("delete", blocker.id)
    assert (refused.code, "Uncompleted jobs of other chains" in refused.error) == (1, True)
    deleted = run("delete", dependent.id, "--cascade", "--format", "json").json["deleted"]
    assert deleted == sorted(map(str, [blocker.id, dependent.id]))
    assert not Job.objects.exists()


# complete


@FORMS
@pytest.mark.parametrize("text", ['{"ok": [1, null]}', "-"])
def test_a_chain_ends_with_the_output(run, store, form, text):
    chain = pending(store)
    done = run("complete", chain.id, "--output", text, "--format", form, stdin='{"ok": [1, null]}')
    assert (done.code, chain.refresh().status, chain.output) == (0, "completed", {"ok": [1, None]})
    if form == "json":
        assert done.json == {"completed": str(chain.id), "chain": str(chain.id), "type": "shop.ship"}
    else:
        assert done.out == f"shop.ship {chain.id} and its chain completed.\n"


def test_an_output_that_does_not_fit_the_type_is_refused(run):
    chain = enqueue("shop.charge", 5)
    done = run("complete", chain.id, "--output", '"five"')
    assert (done.code, "Not an int" in done.error, chain.refresh().status) == (1, True, "pending")
    assert run("complete", chain.id, "--output", "5").code == 0


def test_an_ended_chain_is_refused(run, store):
    done = run("complete", failed(store).id, "--output", "null")
    assert (done.code, "is failed: use chains.retry first" in done.error) == (1, True)


def test_only_the_current_job_of_a_chain_can_be_completed(run):
    chain = ship.enqueue()
    go_on(chain)
    go_on(chain)
    middle = Job.objects.get(chain_index=1).id
    assert "is not its chain's current job" in run("complete", middle, "--output", "1").error
    assert "is of type 'shop.mail'" in run("complete", chain.id, "--output", "1", "--type", "shop.ship").error
    assert run("complete", chain.refresh().current_job_id, "--output", "1", "--type", "shop.mail").code == 0


@pytest.mark.django_db(transaction=True)
def test_complete_is_run_again_after_a_conflict(run):
    chain = ship.enqueue()
    with failing(1, CONFLICT, statement=2):  # The first one finds the chain.
        assert run("complete", chain.id, "--output", "1").code == 0
    assert chain.refresh().output == 1


# prune


@pytest.fixture
def _ended_long_ago(store, clock):
    """Three chains that ended ten days ago, and two open ones."""
    for make in (completed, cancelled, failed, pending, pending):
        make(store)
    clock.advance(864_000)


@pytest.mark.usefixtures("_ended_long_ago")
@pytest.mark.parametrize(
    ("words", "out", "left"),
    [
        ("--older-than 11d", "0 chains deleted.\n", 5),
        ("--older-than 9d12h", "2 chains deleted.\n", 3),
        ("--older-than 1w --dry-run", "2 chains would be deleted.\n", 5),
        ("--older-than 1w --dry-run --format json", '{"would_be_deleted": 2}\n', 5),
        ("--older-than 1h --type shop.mail --format json", '{"deleted": 0}\n', 5),
        ("--older-than 1h --type shop.ship --status failed --status cancelled", "2 chains deleted.\n", 3),
        ("--older-than 1h --batch 1", "2 chains deleted.\n", 3),
        # Without an age, the settings of the retention apply: a day for completed and failed chains.
        ("", "2 chains deleted.\n", 3),
        ("--status failed --dry-run", "1 chain would be deleted.\n", 5),
    ],
)
def test_old_chains_are_deleted_and_counted(run, settings, words, out, left):
    settings.JOBCHAINS = {"RETENTION_COMPLETED_SECONDS": 86_400, "RETENTION_FAILED_SECONDS": 86_400}
    done = run("prune", *words.split())
    assert (done.code, done.out, Job.objects.count()) == (0, out, left)
    assert Job.objects.with_status("pending").count() == 2
