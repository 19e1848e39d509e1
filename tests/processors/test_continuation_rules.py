"""``continues_with``: names or job types, checked at start-up and when a handler continues."""

from typing import Any

import pytest
from django.core.checks import run_checks

from django_jobchains import chains
from django_jobchains.models import FailedAttempt
from django_jobchains.processors import JobType, Processors
from tests.support.attempts import committed


def messages():
    return [(message.id, message.msg, message.hint) for message in run_checks(tags=["jobchains"])]


@pytest.mark.parametrize("name", ["shop.recipt", JobType("shop.recipt")])
def test_an_unknown_name_is_a_system_check_error(registry, name):
    part = Processors()
    part.register("shop.charge", continues_with=[name, "shop.charge"])(lambda job: None)
    registry.add(part)
    ((id_, message, hint),) = messages()
    assert id_ == "jobchains.E004"
    assert message == "'shop.charge' continues_with 'shop.recipt', which no app declares."
    assert "INSTALLED_APPS" in hint


def test_known_names_and_types_pass_the_checks(registry):
    receipt = JobType("shop.receipt")
    registry.add(receipt)
    registry.add(JobType("shop.charge", continues_with=[receipt, "shop.refund"]))
    registry.add(JobType("shop.refund", continues_with=()))
    assert messages() == []


@committed
@pytest.mark.parametrize("by", ["name", "type"])
@pytest.mark.parametrize(
    ("allowed", "status", "steps"),
    [(None, "completed", 2), (["second"], "completed", 2), (["third"], "pending", 1), ([], "pending", 1)],
)
def test_a_handler_may_continue_only_with_allowed_types(work, by, allowed, status, steps):
    part = Processors()
    second = part.register("second")(lambda job: None)
    third = part.register("third")(lambda job: None)
    types = {"second": second, "third": third}
    rule = allowed if by == "name" or allowed is None else [types[name] for name in allowed]

    @part.register("first", continues_with=rule)
    def first(job):
        return job.continue_with("second" if by == "name" else second)

    chain = first.enqueue()
    work(part)
    assert (chain.refresh().status, chain.jobs.count()) == (status, steps)
    if steps == 1:
        names = ", ".join(allowed or ["nothing"])
        error = FailedAttempt.objects.get().error
        assert error.startswith(f"ContinuationNotAllowed: 'first' may continue with {names}, but not with 'second'")


@pytest.mark.django_db
@pytest.mark.parametrize("unknown", ["nope", "chain_index", "max_attempts"])
def test_an_unknown_argument_is_an_error_that_lists_the_known(unknown):
    """The error names ``continue_with``, and no internal function."""
    chain = JobType[Any, Any]("shop.approval").enqueue()
    words = rf"^continue_with\(\) does not take the argument {unknown}\. It takes run_at, delay, blockers,"
    with chains.current_job(chain) as current, pytest.raises(TypeError, match=words):
        current.continue_with(JobType("shop.receipt"), 1, **{unknown: 1})
