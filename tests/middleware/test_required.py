"""Middleware that a worker requires: it does not start while a slice that it would run lacks some."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings as project
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_jobchains.middleware import ActorContext, LogContext, Middleware
from django_jobchains.processors import Processors, Registry, get_registry
from django_jobchains.worker import Worker
from tests.attempts.work import WITHOUT_WAKE_UPS

pytestmark = pytest.mark.django_db


class Tenants(ActorContext):
    """A subclass, as a project has it."""


HERE = "tests.middleware.test_required"


@pytest.fixture
def slices(registry: Registry) -> Iterator[dict[str, Processors]]:
    found = {
        "both": Processors(middleware=[LogContext(), Tenants()]),
        "tenants": Processors(middleware=[Tenants()]),
        "none": Processors(),
        "empty": Processors(),
    }
    for name, part in found.items():
        if name != "empty":
            part.register(f"{name}.one")(lambda job: None)
            part.register(f"{name}.two")(lambda job: None)
        registry.add(part)
    return found


def refusal(registry: Registry, **options: Any) -> str:
    with pytest.raises(ImproperlyConfigured) as caught:
        Worker(registry=registry, **options)
    return str(caught.value)


def test_every_slice_that_lacks_some_is_named_with_all_that_it_lacks(slices: Any, registry: Registry) -> None:
    assert refusal(registry, required_middleware=[Tenants, LogContext]) == (
        "Required middleware is missing: "
        "the slice with tenants.one, tenants.two lacks django_jobchains.middleware.log_context.LogContext; "
        f"the slice with none.one, none.two lacks {HERE}.Tenants, "
        "django_jobchains.middleware.log_context.LogContext. Add it: Processors(middleware=[…])."
    )


def test_an_instance_of_a_subclass_counts_and_one_of_a_base_does_not(slices: Any, registry: Registry) -> None:
    Worker(registry=registry, types=["tenants.*", "both.*"], required_middleware=[ActorContext])
    registry.add(lesser := Processors(middleware=[ActorContext()]))
    lesser.register("lesser")(lambda job: None)
    assert "the slice with lesser lacks" in refusal(registry, types=["lesser"], required_middleware=[Tenants])


def test_slices_that_the_worker_does_not_run_do_not_count(slices: Any, registry: Registry) -> None:
    Worker(registry=registry, types=["both.*"], required_middleware=[Tenants, LogContext])
    assert "tenants.one" in refusal(registry, types=["both.*", "tenants.two"], required_middleware=[LogContext])


def test_the_settings_require_for_every_worker_and_its_arguments_add_to_them(slices: Any, registry: Registry) -> None:
    required = {**WITHOUT_WAKE_UPS, "REQUIRED_MIDDLEWARE": [f"{HERE}.Tenants"]}
    with override_settings(JOBCHAINS=required):
        assert "none.one" in refusal(registry)
        assert "none.one" in refusal(registry, required_middleware=[])
        Worker(registry=registry, types=["tenants.*"])
        assert "LogContext" in refusal(registry, types=["tenants.*"], required_middleware=[LogContext])
        Worker(registry=registry, types=["both.*"], required_middleware=[LogContext, Tenants])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["no.such.Middleware"], "Required middleware 'no.such.Middleware' cannot be imported"),
        (["django_jobchains.middleware.NoMiddleware"], "NoMiddleware' cannot be imported"),
        (["django_jobchains.processors.Processors"], "is no subclass of Middleware"),
        ([LogContext()], "is no subclass of Middleware"),
        ("django_jobchains.middleware.LogContext", "a list of classes or dotted paths"),
        (LogContext, "a list of classes or dotted paths"),
        (None, "a list of classes or dotted paths"),
    ],
)
def test_what_cannot_be_required_is_refused(slices: Any, registry: Registry, wrong: Any, words: str) -> None:
    assert words in refusal(registry, required_middleware=wrong)
    with override_settings(JOBCHAINS={"REQUIRED_MIDDLEWARE": wrong}):
        assert words in refusal(registry)


def test_the_command_says_it_and_does_not_start(
    slices: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    required = {**WITHOUT_WAKE_UPS, "REQUIRED_MIDDLEWARE": [Tenants]}
    with (
        override_settings(JOBCHAINS=required),
        pytest.raises(CommandError, match="Required middleware is missing: the slice"),
    ):
        call_command("run_jobworker", burst=True)


def test_a_slice_that_was_found_is_named_by_its_module_and_variable() -> None:
    with override_settings(INSTALLED_APPS=[*project.INSTALLED_APPS, "tests.processors.apps.plain"]):
        lacks = refusal(get_registry(), required_middleware=[Middleware])
    assert "tests.processors.apps.plain.jobs.processors lacks" in lacks


def test_a_slice_without_types_is_named_too() -> None:
    assert Processors().name == "the slice with no types"
