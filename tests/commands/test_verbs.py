"""``retry``, ``cancel``, ``run-now``, ``delete`` and ``complete`` change the given chains and jobs."""

import json
from typing import Any
from uuid import UUID

import pytest

from django_jobchains.chains import Chain, enqueue
from django_jobchains.cli import subcommand
from django_jobchains.db.ids import new_id
from django_jobchains.models import Job
from tests.support.chains import STATES, completed, failed, go_on, mail, pending, ship

pytestmark = pytest.mark.django_db

FORMS = pytest.mark.parametrize("form", ["table", "json"])
#: For each verb: a state that it changes, the status afterwards, a state that it skips, and the word in its output.
VERBS = {
    "retry": ("failed", "pending", "completed", "retried"),
    "cancel": ("pending", "cancelled", "completed", "cancelled"),
    "run-now": ("scheduled", "pending", None, "made due"),
    "delete": ("completed", None, None, "deleted"),
}
EACH_VERB = pytest.mark.parametrize("verb", VERBS)


def status(chain: Chain) -> str | None:
    return Job.objects.filter(chain_id=chain.id).order_by("-chain_index").values_list("status", flat=True).first()


@EACH_VERB
@FORMS
def test_a_verb_changes_the_given_chains_and_reports_it(run, store, verb, form):
    before, after, _, word = VERBS[verb]
    first, second, other = (STATES[before](store) for _ in range(3))
    done = run(verb, first.id, second.id, "--format", form)
    assert (done.code, status(first), status(second)) == (0, after, after)
    assert other.refresh().status == {"scheduled": "pending"}.get(before, before)
    if form == "json":
        assert done.json == {word.replace(" ", "_"): sorted(map(str, [first.id, second.id])), "asked": 2}
    else:
        assert done.out == f"2 {'chains' if verb in ('cancel', 'delete') else 'jobs'} {word}.\n"


@EACH_VERB
def test_an_unknown_id_is_an_error_and_nothing_changes(run, store, verb):
    before, _, _, _ = VERBS[verb]
    chain, unknown = STATES[before](store), new_id()
    done = run(verb, chain.id, unknown)
    assert done.code == 1
    assert f"No chain or job {unknown}" in done.error
    assert "Nothing was changed" in done.error
    assert chain.refresh().status == {"scheduled": "pending"}.get(before, before)


@EACH_VERB
def test_an_invalid_id_is_a_usage_error(run, verb):
    assert "'4711' is not an id: give the complete UUID" in run(verb, "4711").error


@pytest.mark.parametrize("verb", ["retry", "cancel"])
@FORMS
def test_a_verb_that_changes_nothing_fails_with_a_reason(run, store, verb, form):
    done = run(verb, completed(store).id, "--format", form)
    assert done.code == 1
    assert done.error.startswith("Nothing ")
    if form == "json":
        assert done.json["asked"] == 1


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_skipped_ids_are_counted(run, store, verb):
    before, after, left, _ = VERBS[verb]
    assert left
    changed, other = STATES[before](store), STATES[left](store)
    done = run(verb, changed.id, other.id)
    assert done.code == 0
    assert "1 id not changed" in done.out
    assert (status(changed), status(other)) == (after, left)


@EACH_VERB
def test_ids_can_come_from_standard_input(run, store, verb):
    before, after, _, _ = VERBS[verb]
    made = [STATES[before](store) for _ in range(3)]
    assert run(verb, made[0].id, "-", stdin=f"{made[1].id}\n {made[2].id}\n{made[0].id}\n").code == 0
    assert [status(chain) for chain in made] == [after] * 3


def test_empty_or_invalid_standard_input_is_an_error(run):
    assert run("retry", "-").error == "No ids on standard input."
    done = run("retry", "-", stdin="nonsense")
    assert done.code == 2
    assert "On standard input: 'nonsense' is not an id" in done.error


def test_the_id_of_a_later_step_does_not_delete_its_chain(run, store):
    chain = ship.enqueue()
    go_on(chain)
    done = run("delete", chain.refresh().current_job_id)
    assert done.code == 1
    assert f"a later step of chain {chain.id}" in done.error
    assert Job.objects.count() == 2


def test_cascade_deletes_a_chain_with_its_blockers(run, store):
    blocker = mail.enqueue()
    dependent = ship.enqueue(blockers=[blocker])
    refused = run("delete", blocker.id)
    assert refused.code == 1
    assert "needed as blockers" in refused.error
    assert run("delete", dependent.id, "--cascade", "--format", "json").json["deleted"] == sorted(
        map(str, [blocker.id, dependent.id])
    )
    assert not Job.objects.exists()


def test_run_now_of_a_failed_job_names_the_remedy(run, store):
    chain = failed(store)
    done = run("run-now", chain.id)
    assert (done.code, "is failed, not pending: use chains.retry" in done.error) == (1, True)


def test_many_ids_are_changed_in_batches(run, store, monkeypatch):
    monkeypatch.setattr(subcommand, "BATCH_SIZE", 10)
    made = [pending(store) for _ in range(35)]
    done = run("cancel", "-", "--format", "json", stdin="\n".join(str(chain.id) for chain in made))
    assert len(done.json["cancelled"]) == done.json["asked"] == 35
    assert set(map(status, made)) == {"cancelled"}


class TestComplete:
    @FORMS
    def test_the_chain_ends_with_the_output(self, run, store, form):
        chain = pending(store)
        done = run("complete", chain.id, "--output", '{"ok": [1, null]}', "--format", form)
        assert done.code == 0
        assert (chain.refresh().status, chain.output) == ("completed", {"ok": [1, None]})
        if form == "json":
            assert done.json == {"completed": str(chain.id), "chain": str(chain.id), "type": "shop.ship"}
        else:
            assert done.out == f"shop.ship {chain.id} and its chain completed.\n"

    def test_the_output_can_come_from_standard_input(self, run, store):
        chain = pending(store)
        assert run("complete", chain.id, "--output", "-", stdin='"done"').code == 0
        assert chain.refresh().output == "done"
        assert run("complete", chain.id, "--output", "-", stdin="{").code == 2

    @pytest.mark.parametrize("text", ["", "{", "NaN", "text", "[1,]", "[" * 100_000])
    def test_invalid_json_is_a_usage_error_with_an_example(self, run, store, text):
        done = run("complete", pending(store).id, "--output", text)
        assert done.code == 1
        assert "is not JSON" in done.error
        assert "write for example null" in done.error

    def test_an_output_that_does_not_fit_the_type_is_refused(self, run):
        chain = enqueue("shop.charge", 5)
        done = run("complete", chain.id, "--output", '"five"')
        assert (done.code, "Not a int" in done.error) == (1, True)
        assert chain.refresh().status == "pending"
        assert run("complete", chain.id, "--output", "5").code == 0

    @pytest.mark.parametrize(
        ("state", "message"), [("completed", "already completed"), ("failed", "is failed: use chains.retry first")]
    )
    def test_an_ended_chain_is_refused(self, run, store, state, message):
        done = run("complete", STATES[state](store).id, "--output", "null")
        assert (done.code, message in done.error) == (1, True)

    def test_only_the_current_job_of_a_chain_can_be_completed(self, run, store):
        chain = ship.enqueue()
        go_on(chain)
        go_on(chain)
        middle: Any = Job.objects.get(chain_index=1).id
        assert "is not its chain's current job" in run("complete", middle, "--output", "1").error
        assert "is of type 'shop.mail'" in run("complete", chain.id, "--output", "1", "--type", "shop.ship").error
        assert run("complete", chain.refresh().current_job_id, "--output", "1", "--type", "shop.mail").code == 0

    def test_an_id_and_an_output_are_required(self, run, store):
        assert "required: --output" in run("complete", pending(store).id).error
        assert "No chain or job" in run("complete", UUID(int=5), "--output", json.dumps(1)).error
