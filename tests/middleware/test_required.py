"""A worker does not start if processors that it would run lack required middleware."""

import pytest
from django.conf import settings as project
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_jobchains.middleware import ActorContext, LogContext, Middleware, QueryBudget
from django_jobchains.processors import Processors, get_registry
from django_jobchains.worker import Worker
from tests.support.attempts import WITHOUT_WAKE_UPS

pytestmark = pytest.mark.django_db


class Tenants(ActorContext):
    """A subclass of included middleware."""


HERE = "tests.middleware.test_required"


@pytest.fixture
def processors_by_name(registry):
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


def refusal(registry, **options):
    with pytest.raises(ImproperlyConfigured) as caught:
        Worker(registry=registry, **options)
    return str(caught.value)


def test_error_names_all_missing_middleware(processors_by_name, registry):
    assert refusal(registry, required_middleware=[LogContext, Tenants]) == (
        "Required middleware: "
        "the slice with tenants.one, tenants.two lacks django_jobchains.middleware.log_context.LogContext; "
        "the slice with none.one, none.two lacks django_jobchains.middleware.log_context.LogContext, "
        f"{HERE}.Tenants. Correct it: Processors(middleware=[…])."
    )


def test_subclass_satisfies_the_requirement_and_a_base_class_does_not(processors_by_name, registry):
    Worker(registry=registry, types=["tenants.*", "both.*"], required_middleware=[ActorContext])
    registry.add(lesser := Processors(middleware=[ActorContext()]))
    lesser.register("lesser")(lambda job: None)
    assert "the slice with lesser lacks" in refusal(registry, types=["lesser"], required_middleware=[Tenants])


def test_required_middleware_must_be_in_order(processors_by_name, registry):
    names = f"{HERE}.Tenants, django_jobchains.middleware.log_context.LogContext"
    assert refusal(registry, types=["both.*"], required_middleware=[Tenants, LogContext]) == (
        f"Required middleware: the slice with both.one, both.two has it in another order than {names}. "
        "Correct it: Processors(middleware=[…])."
    )
    registry.add(mixed := Processors(middleware=[QueryBudget(9), LogContext(), QueryBudget(9), Tenants()]))
    mixed.register("mixed")(lambda job: None)
    Worker(registry=registry, types=["mixed"], required_middleware=[LogContext, Tenants])
    Worker(registry=registry, types=["mixed"], required_middleware=[LogContext, ActorContext, Tenants])


def test_processors_that_the_worker_does_not_run_are_ignored(processors_by_name, registry):
    Worker(registry=registry, types=["both.*"], required_middleware=[LogContext, Tenants])
    assert "tenants.one" in refusal(registry, types=["both.*", "tenants.two"], required_middleware=[LogContext])


def test_arguments_of_a_worker_extend_the_setting(processors_by_name, registry):
    required = {**WITHOUT_WAKE_UPS, "REQUIRED_MIDDLEWARE": [f"{HERE}.Tenants"]}
    with override_settings(JOBCHAINS=required):
        assert "none.one" in refusal(registry)
        assert "none.one" in refusal(registry, required_middleware=[])
        Worker(registry=registry, types=["tenants.*"])
        assert "LogContext" in refusal(registry, types=["tenants.*"], required_middleware=[LogContext])
    with override_settings(JOBCHAINS={**required, "REQUIRED_MIDDLEWARE": [LogContext]}):
        Worker(registry=registry, types=["both.*"], required_middleware=[LogContext, Tenants])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["no.such.Middleware"], "Required middleware 'no.such.Middleware' cannot be imported"),
        (["django_jobchains.middleware.NoMiddleware"], "NoMiddleware' cannot be imported"),
        (["django_jobchains.processors.Processors"], "is not a subclass of Middleware"),
        ([LogContext()], "is not a subclass of Middleware"),
        ("django_jobchains.middleware.LogContext", "a list of classes or dotted paths"),
        (LogContext, "a list of classes or dotted paths"),
        (None, "a list of classes or dotted paths"),
    ],
)
def test_invalid_requirements_are_refused(processors_by_name, registry, wrong, words):
    assert words in refusal(registry, required_middleware=wrong)
    with override_settings(JOBCHAINS={"REQUIRED_MIDDLEWARE": wrong}):
        assert words in refusal(registry)


def test_command_reports_the_error_and_does_not_start(processors_by_name, registry):
    required = {**WITHOUT_WAKE_UPS, "REQUIRED_MIDDLEWARE": [Tenants]}
    with (
        override_settings(JOBCHAINS=required),
        pytest.raises(CommandError, match="Required middleware: the slice"),
    ):
        call_command("run_jobworker", burst=True)


def test_discovered_processors_are_named_by_their_module_and_variable():
    with override_settings(INSTALLED_APPS=[*project.INSTALLED_APPS, "tests.processors.apps.plain"]):
        lacks = refusal(get_registry(), required_middleware=[Middleware])
    assert "tests.processors.apps.plain.jobs.processors lacks" in lacks


def test_processors_without_types_have_a_name():
    assert Processors().name == "the slice with no types"
