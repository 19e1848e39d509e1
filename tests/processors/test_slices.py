"""The options of a slice are the defaults of its processors."""

from typing import Any

import pytest

from django_jobchains.declare.policies import RetryRule
from django_jobchains.declare.slices import DeclarationOptions, ProcessorOptions, RegisterOptions
from django_jobchains.exceptions import InvalidDeclaration
from django_jobchains.processors import JobType, Processors, RunningJob


def never(error: BaseException) -> bool:
    return False


#: An attribute of a processor; options of the slice and of a processor; the attribute without and with the latter.
OPTIONS: list[tuple[str, Any, Any, Any, Any]] = [
    ("mode", "atomic", "staged", "atomic", "staged"),
    ("queue", "slow", "fast", "slow", "fast"),
    ("priority", 3, 0, 3, 0),
    ("batch_limit", 5, 6, 5, 6),
    ("retry", {"fail_on": OSError}, {"fail_on": [KeyError]}, RetryRule((OSError,)), RetryRule((KeyError,))),
    ("retry", {"fail_on": OSError}, {"fail_on": ()}, RetryRule((OSError,)), RetryRule()),
    (
        "retry",
        {"fail_on": OSError, "retry_if": never},
        {"fail_on": KeyError},
        RetryRule((OSError,), never),
        RetryRule((KeyError,), never),
    ),
    ("on_failure", "shop.alert", JobType("shop.undo"), "shop.alert", "shop.undo"),
]


@pytest.mark.parametrize(("name", "of_slice", "own", "inherited", "replaced"), OPTIONS)
def test_options_of_a_slice_are_defaults_of_its_processors(name, of_slice, own, inherited, replaced):
    slice_options = of_slice if isinstance(of_slice, dict) else {name: of_slice}
    own_options = own if isinstance(own, dict) else {name: own}
    part = Processors(**slice_options)
    part.register("inherits")(lambda job: None)
    part.register("replaces", **own_options)(lambda job: None)
    found = [getattr(part.by_name[type_name], name) for type_name in ("inherits", "replaces")]
    assert found == [inherited, replaced]


def test_slices_accept_every_option_of_processors():
    assert ProcessorOptions.__annotations__.keys() == (
        RegisterOptions.__annotations__.keys() - DeclarationOptions.__annotations__.keys()
    )
    with pytest.raises(
        TypeError,
        match=r"^Processors\(\) .* argument max_attempt\. Did you mean 'max_attempts'\?",
    ):
        Processors(max_attempt=3)


def test_a_handler_is_checked_against_the_options_of_its_slice():
    part = Processors(mode="atomic", batch_limit=5)
    with pytest.raises(InvalidDeclaration, match="is async: mode='atomic'"):

        @part.register("shop.late", batch_limit=1)
        async def late(job: RunningJob[Any]) -> None: ...

    with pytest.raises(InvalidDeclaration, match=r"With batch_limit, '.*' takes a Batch"):

        @part.register("shop.single")
        def single(job: RunningJob[Any]) -> None: ...
