"""``retry``, ``cancel``, ``run-now``, ``delete`` and ``complete``: what people do to the chains and jobs they name."""

import json
from typing import Any
from uuid import UUID

import pytest

from django_jobchains.chains import Chain, enqueue
from django_jobchains.console import verbs
from django_jobchains.ids import new_id
from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.commands.conftest import Run
from tests.interventions.chains_at import STATES, attempt, completed, failed, go_on, mail, pending, running, ship
from tests.store.jobs import failed_try

pytestmark = pytest.mark.django_db

FORMS = pytest.mark.parametrize("form", ["table", "json"])
#: The verb, a state it changes, the status after it, one it leaves, and the word for what it did.
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
def test_a_verb_changes_what_it_names_and_tells(run: Run, store: Store, verb: str, form: str) -> None:
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
def test_an_id_that_nobody_has_is_an_error_and_nothing_is_changed(run: Run, store: Store, verb: str) -> None:
    before, _, _, _ = VERBS[verb]
    chain, unknown = STATES[before](store), new_id()
    done = run(verb, chain.id, unknown)
    assert done.code == 1
    assert f"No chain or job {unknown}" in done.error
    assert "Nothing was changed" in done.error
    assert chain.refresh().status == {"scheduled": "pending"}.get(before, before)


@EACH_VERB
def test_what_is_no_id_is_a_usage_error(run: Run, verb: str) -> None:
    assert "'4711' is no id: give the UUID" in run(verb, "4711").error


@pytest.mark.parametrize("verb", ["retry", "cancel"])
@FORMS
def test_a_verb_that_changes_nothing_is_code_1_and_says_why(run: Run, store: Store, verb: str, form: str) -> None:
    done = run(verb, completed(store).id, "--format", form)
    assert done.code == 1
    assert done.error.startswith("Nothing ")
    if form == "json":
        assert done.json["asked"] == 1


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_what_it_leaves_as_it_is_is_counted(run: Run, store: Store, verb: str) -> None:
    before, after, left, _ = VERBS[verb]
    assert left
    changed, other = STATES[before](store), STATES[left](store)
    done = run(verb, changed.id, other.id)
    assert done.code == 0
    assert "1 id left as before" in done.out
    assert (status(changed), status(other)) == (after, left)


@EACH_VERB
def test_ids_come_from_the_standard_input_too(run: Run, store: Store, verb: str) -> None:
    before, after, _, _ = VERBS[verb]
    made = [STATES[before](store) for _ in range(3)]
    assert run(verb, made[0].id, "-", stdin=f"{made[1].id}\n {made[2].id}\n{made[0].id}\n").code == 0
    assert [status(chain) for chain in made] == [after] * 3


def test_an_empty_or_wrong_standard_input_is_an_error(run: Run) -> None:
    assert run("retry", "-").error == "No ids on the standard input: nothing to do."
    done = run("retry", "-", stdin="nonsense")
    assert done.code == 2
    assert "On the standard input: 'nonsense' is no id" in done.error


def test_the_id_of_a_chain_is_that_of_the_job_it_is_at(run: Run, store: Store) -> None:
    chain = ship.enqueue()
    go_on(chain)
    store.fail([failed_try(attempt(store, chain))])
    assert run("retry", chain.id).code == 0
    assert status(chain) == "pending"
    go_on(chain, delay=3600)
    later = chain.refresh().current_job_id
    assert later != chain.id
    assert run("run-now", later).code == run("run-now", chain.id).code == 0
    assert run("cancel", later).code == 0
    assert status(chain) == "cancelled"


def test_a_later_step_is_not_deleted_with_its_whole_chain_by_mistake(run: Run, store: Store) -> None:
    chain = ship.enqueue()
    go_on(chain)
    done = run("delete", chain.refresh().current_job_id)
    assert done.code == 1
    assert f"a later step of chain {chain.id}" in done.error
    assert Job.objects.count() == 2


def test_a_chain_that_is_needed_is_deleted_with_the_one_that_needs_it(run: Run, store: Store) -> None:
    blocker = mail.enqueue()
    dependent = ship.enqueue(blockers=[blocker])
    refused = run("delete", blocker.id)
    assert refused.code == 1
    assert "needed as blockers" in refused.error
    assert run("delete", dependent.id, "--cascade", "--format", "json").json["deleted"] == sorted(
        map(str, [blocker.id, dependent.id])
    )
    assert not Job.objects.exists()


def test_a_running_job_is_asked_to_stop(run: Run, store: Store) -> None:
    chain = running(store)
    assert run("cancel", chain.id).code == 0
    assert Job.objects.get().cancel_requested_at


def test_run_now_refuses_what_is_not_pending_and_says_what_to_do(run: Run, store: Store) -> None:
    chain = failed(store)
    done = run("run-now", chain.id)
    assert (done.code, "is failed, not pending: use chains.retry" in done.error) == (1, True)


def test_many_ids_are_changed_in_parts(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "AT_ONCE", 10)
    made = [pending(store) for _ in range(35)]
    done = run("cancel", "-", "--format", "json", stdin="\n".join(str(chain.id) for chain in made))
    assert len(done.json["cancelled"]) == done.json["asked"] == 35
    assert set(map(status, made)) == {"cancelled"}


class TestComplete:
    @FORMS
    def test_the_chain_ends_with_the_output(self, run: Run, store: Store, form: str) -> None:
        chain = pending(store)
        done = run("complete", chain.id, "--output", '{"ok": [1, null]}', "--format", form)
        assert done.code == 0
        assert (chain.refresh().status, chain.output) == ("completed", {"ok": [1, None]})
        if form == "json":
            assert done.json == {"completed": str(chain.id), "chain": str(chain.id), "type": "shop.ship"}
        else:
            assert done.out == f"shop.ship {chain.id} completed, and its chain with it.\n"

    def test_the_output_comes_from_the_standard_input_too(self, run: Run, store: Store) -> None:
        chain = pending(store)
        assert run("complete", chain.id, "--output", "-", stdin='"done"').code == 0
        assert chain.refresh().output == "done"
        assert run("complete", chain.id, "--output", "-", stdin="{").code == 2

    @pytest.mark.parametrize("text", ["", "{", "NaN", "text", "[1,]", "[" * 100_000])
    def test_what_is_no_json_is_a_usage_error_that_shows_how(self, run: Run, store: Store, text: str) -> None:
        done = run("complete", pending(store).id, "--output", text)
        assert done.code == 1
        assert "is no JSON" in done.error
        assert "write null" in done.error

    def test_an_output_that_its_type_does_not_return_is_refused(self, run: Run) -> None:
        chain = enqueue("shop.charge", 5)
        done = run("complete", chain.id, "--output", '"five"')
        assert (done.code, "Not a int" in done.error) == (1, True)
        assert chain.refresh().status == "pending"
        assert run("complete", chain.id, "--output", "5").code == 0

    @pytest.mark.parametrize(
        ("state", "message"), [("completed", "completed already"), ("failed", "is failed: use chains.retry first")]
    )
    def test_what_has_ended_is_refused(self, run: Run, store: Store, state: str, message: str) -> None:
        done = run("complete", STATES[state](store).id, "--output", "null")
        assert (done.code, message in done.error) == (1, True)

    def test_only_the_job_a_chain_is_at_can_be_completed(self, run: Run, store: Store) -> None:
        chain = ship.enqueue()
        go_on(chain)
        go_on(chain)
        middle: Any = Job.objects.get(chain_index=1).id
        assert "is not the one its chain is at" in run("complete", middle, "--output", "1").error
        assert "is a 'shop.mail'" in run("complete", chain.id, "--output", "1", "--type", "shop.ship").error
        assert run("complete", chain.refresh().current_job_id, "--output", "1", "--type", "shop.mail").code == 0

    def test_without_an_id_or_output_it_does_nothing(self, run: Run, store: Store) -> None:
        assert "required: --output" in run("complete", pending(store).id).error
        assert "No chain or job" in run("complete", UUID(int=5), "--output", json.dumps(1)).error
