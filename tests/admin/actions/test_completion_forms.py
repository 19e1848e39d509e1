"""The Django form of a job type, which completes its jobs in the admin."""

from unittest.mock import patch

import pytest
from django import forms
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError

from django_jobchains import chains
from django_jobchains.declare.checks import check_registry
from django_jobchains.exceptions import InvalidDeclaration
from django_jobchains.processors import JobType, Processors, get_registry
from tests.admin.actions.conftest import Receipt, send
from tests.admin.browsing import act, act_many, choose_action, messages_in, text_of, url
from tests.support.chains import everything, statuses
from tests.support.connections import end_all, holding, waiting


class JobForm(forms.Form):
    def __init__(self, *args, job, request, **options):
        super().__init__(*args, **options)
        self.shown_job, self.request = job, request


class ReceiptForm(JobForm):
    """A form without ``complete``: its cleaned data is the output."""

    reference = forms.CharField(required=False)


class Decision(JobForm):
    """A form with ``complete``, which writes rows, and finishes or continues the chain."""

    group = forms.CharField()
    outcome = forms.CharField()

    def complete(self, current):
        group = Group.objects.create(name=self.cleaned_data["group"])
        match self.cleaned_data["outcome"]:
            case "finish":
                current.finish(Receipt(f"{self.request.user.username}, {self.shown_job.input}, {group.name}"))
            case "continue":
                current.continue_with(send, {"number": 1})
            case "refuse":
                raise ValidationError({"outcome": "Not today."})
            case "wrong":
                current.finish(5)


@pytest.fixture
def declare(store, monkeypatch):
    """Return a function that declares a type with a completion form, and returns it."""

    def declare(form):
        job_type = JobType("shop.approval", output=Receipt, completion_form=form)
        monkeypatch.setitem(get_registry().declared, "shop.approval", job_type)
        return job_type

    return declare


@pytest.fixture
def approval(declare):
    return declare(Decision)


@pytest.fixture
def chain(approval):
    return approval.enqueue("kettle").refresh()


def decide(client, chain, outcome, **changes):
    return act(client, "complete", chain, **{"completion-group": "friends", "completion-outcome": outcome, **changes})


def is_unchanged(chain):
    return statuses(chain) == ["pending"] and not Group.objects.exists() and not LogEntry.objects.exists()


def test_the_form_replaces_the_fields_and_the_choice_of_a_type(superuser, chain):
    page = text_of(superuser.get(url("complete", chain)))
    assert 'name="completion-group"' in page
    assert "payload" not in page.replace("jobchains-payload", "")
    assert "Continue with" not in page


def test_the_form_gets_the_job_and_the_request_and_completes(superuser, chain):
    assert messages_in(decide(superuser, chain, "finish")) == ["1 job completed."]
    assert (chain.refresh().status, chain.output) == ("completed", Receipt("root, kettle, friends"))
    assert LogEntry.objects.get().change_message == "Completed."
    before = everything()
    assert messages_in(decide(superuser, chain, "finish"))[-1] == f"1 row skipped: already completed ({chain.id})."
    assert everything() == before
    assert Group.objects.get().name == "friends"


def test_the_form_can_continue_the_chain(superuser, chain):
    with patch.object(send.input_codec, "encode", lambda value, error: '{"number": 1}'):
        decide(superuser, chain, "continue")
    assert statuses(chain.refresh()) == ["completed", "pending"]
    assert LogEntry.objects.get().change_message == "Completed, and continued with shop.send."


class GroupForm(JobForm):
    """A form without ``complete``, with a value that cannot be written as JSON."""

    group = forms.ModelChoiceField(Group.objects)


def test_cleaned_data_that_is_not_json_is_an_error_at_its_field(superuser, declare):
    chain, group = declare(GroupForm).enqueue().refresh(), Group.objects.create(name="friends")
    reply = act(superuser, "complete", chain, **{"completion-group": group.pk})
    [error] = reply.context["form"].own.errors["group"]
    assert error.startswith("This value cannot be written as JSON: Object of type Group is not JSON serializable.")
    assert statuses(chain) == ["pending"]


def test_cleaned_data_is_the_output_of_a_form_without_complete(superuser, declare, monkeypatch):
    chain, answer = declare(ReceiptForm).enqueue().refresh(), {"completion-reference": "r-1"}
    with patch.object(ReceiptForm, "clean", lambda form: {"reference": 5}):
        [error] = act(superuser, "complete", chain, **answer).context["form"].own.errors["reference"]
    assert "Input should be a valid string" in error
    assert is_unchanged(chain)
    act(superuser, "complete", chain, **answer)
    assert chain.refresh().output == Receipt("r-1")


@pytest.mark.parametrize(
    ("outcome", "changes", "errors"),
    [
        ("finish", {"completion-group": ""}, {"group": ["This field is required."]}),
        ("refuse", {}, {"outcome": ["Not today."]}),  # by ``complete``, whose changes are undone
    ],
)
def test_errors_are_shown_at_their_fields_and_change_nothing(superuser, chain, outcome, changes, errors):
    reply = decide(superuser, chain, outcome, **changes)
    assert reply.context["form"].own.errors == errors
    assert "Please correct the error below." in text_of(reply)
    assert is_unchanged(chain)


@pytest.mark.parametrize(
    ("outcome", "reason"), [("wrong", "not a Receipt"), ("nothing", "the form did not complete the job")]
)
def test_a_form_that_does_not_complete_the_job_changes_nothing(superuser, chain, outcome, reason):
    [message] = messages_in(decide(superuser, chain, outcome))
    assert reason in message
    assert is_unchanged(chain)


@pytest.mark.parametrize("is_continued", [True, False])
def test_a_job_that_changes_during_the_action_is_skipped(superuser, chain, is_continued):
    """The form is not called."""

    def meanwhile(form):
        with chains.current_job(chain.id) as current:
            current.continue_with("shop.mail") if is_continued else current.finish(Receipt("first"))

    with patch.object(Decision, "clean", meanwhile):
        reply = decide(superuser, chain, "finish")
    reason = "the chain has continued with another job" if is_continued else "already completed"
    assert messages_in(reply) == [f"1 row skipped: {reason} ({chain.id})."]
    assert not Group.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_undone", [False, True])
def test_only_one_of_two_simultaneous_decisions_counts(superuser, chain, is_undone):
    """The second one waits for the first, and is skipped unless the first is rolled back."""
    first = holding(lambda store: decide(superuser, chain, "finish"))
    second = waiting(lambda store: decide(superuser, chain, "continue", **{"completion-group": "family"}))
    first.go_on(roll_back=is_undone)
    assert messages_in(first.result()) == ["1 job completed."]
    too_late = f"1 row skipped: already completed ({chain.id})."
    assert messages_in(second.result())[-1] == ("1 job completed." if is_undone else too_late)
    end_all()
    assert statuses(chain) == (["completed", "pending"] if is_undone else ["completed"])
    assert Group.objects.get().name == ("family" if is_undone else "friends")
    assert LogEntry.objects.count() == 1


def test_one_selected_job_has_its_form_and_several_are_refused(superuser, chain, approval):
    rows = [chain, approval.enqueue("cup").refresh()]
    answer = {"job": [row.current_job_id for row in rows], "completion-group": "g", "completion-outcome": "finish"}
    for reply in (choose_action(superuser, "complete", rows), act_many(superuser, "complete", rows, **answer)):
        assert messages_in(reply)[-1] == (
            "Nothing was changed: jobs of the type shop.approval have their own form, select one job."
        )
    assert is_unchanged(chain)
    assert 'name="completion-group"' in text_of(choose_action(superuser, "complete", [chain]))
    assert messages_in(act_many(superuser, "complete", [chain], **answer))[-1] == "1 job completed."


def test_a_form_may_be_a_dotted_path(superuser, declare):
    chain = declare(f"{__name__}.Decision").enqueue("cup").refresh()
    assert 'name="completion-group"' in text_of(superuser.get(url("complete", chain)))


def test_register_accepts_a_form():
    handler = Processors().register("shop.registered", completion_form=Decision)(lambda job: None)
    assert handler.completion_form is Decision


@pytest.mark.parametrize("form", [5, "Decision", object, Decision(job=None, request=None)])
def test_an_invalid_form_is_refused(form):
    with pytest.raises(InvalidDeclaration, match="a form class, or its dotted path"):
        JobType("shop.wrong", completion_form=form)


@pytest.mark.parametrize("path", ["shop.absent.Form", f"{__name__}.Absent", f"{__name__}.decide"])
def test_a_path_without_a_form_is_a_system_check_error(declare, path):
    declare(path)
    [error] = [error for error in check_registry() if error.id == "jobchains.E012"]
    assert "shop.approval" in error.msg
