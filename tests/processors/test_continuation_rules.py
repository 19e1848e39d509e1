"""``continues_with``: by name or JobType, checked at start-up and again when a handler asks."""

from typing import Any

import pytest
from django.core.checks import run_checks

from django_jobchains import chains
from django_jobchains.models import FailedAttempt
from django_jobchains.processors import JobType, Processors, Registry, RunningJob, get_registry
from django_jobchains.worker import Worker
from tests.attempts.work import committed


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The project's registry, empty for the test."""
    registry = get_registry()
    monkeypatch.setattr(registry, "slices", [])
    monkeypatch.setattr(registry, "declared", {})
    return registry


def messages() -> list[tuple[str | None, str, str | None]]:
    return [(message.id, message.msg, message.hint) for message in run_checks(tags=["jobchains"])]


def test_an_unknown_name_is_found_at_start_up(registry: Registry) -> None:
    part = Processors()
    part.register("shop.charge", continues_with=["shop.recipt", "shop.charge"])(lambda job: None)
    registry.add(part)
    ((id_, message, hint),) = messages()
    assert id_ == "jobchains.E004"
    assert message == "'shop.charge' continues_with 'shop.recipt', which no app declares."
    assert hint is not None
    assert "INSTALLED_APPS" in hint


def test_an_undeclared_job_type_is_found_at_start_up(registry: Registry) -> None:
    registry.add(JobType("shop.charge", continues_with=[JobType("shop.receipt")]))
    assert [id_ for id_, _, _ in messages()] == ["jobchains.E004"]


def test_known_names_and_types_are_fine(registry: Registry) -> None:
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
def test_a_handler_may_continue_only_with_what_is_allowed(
    by: str, allowed: list[str] | None, status: str, steps: int
) -> None:
    part = Processors()
    second = part.register("second")(lambda job: None)
    third = part.register("third")(lambda job: None)
    types: dict[str, JobType[Any, Any]] = {"second": second, "third": third}
    rule: Any = allowed if by == "name" or allowed is None else [types[name] for name in allowed]

    @part.register("first", continues_with=rule)
    def first(job: RunningJob[Any]) -> Any:
        return job.continue_with("second" if by == "name" else second)

    registry = Registry()
    registry.add(part)
    chain = first.enqueue()
    Worker(slots=1, registry=registry).run_until_idle()
    assert (chain.refresh().status, chain.jobs.count()) == (status, steps)
    if steps == 1:
        names = ", ".join(allowed or ["nothing"])
        error = FailedAttempt.objects.get().error
        assert error.startswith(f"ContinuationNotAllowed: 'first' may continue with {names}, not with 'second'")


def test_one_name_instead_of_a_list_of_names_is_one_name(registry: Registry) -> None:
    """Not its letters."""
    job_type = JobType("shop.charge", continues_with="shop.receipt")
    assert job_type.continues_with == {"shop.receipt"}


@pytest.mark.django_db
@pytest.mark.parametrize("unknown", ["nope", "id", "chain_index", "max_attempts"])
def test_an_argument_that_it_does_not_take_is_an_error_that_names_what_it_does(unknown: str) -> None:
    """And not an error about a function that the caller has never seen."""
    chain = JobType[Any, Any]("shop.approval").enqueue()
    words = rf"^continue_with\(\) does not take the argument {unknown}\. It takes run_at, delay, blockers,"
    with chains.complete(chain) as current, pytest.raises(TypeError, match=words):
        current.continue_with(JobType("shop.receipt"), 1, **{unknown: 1})  # type: ignore[arg-type]
