"""JSON types need no pydantic; the declaration of another type names the extra that it needs."""

import sys
from dataclasses import dataclass
from typing import Any, Optional

import pytest
from typing_extensions import TypedDict

from django_jobchains.exceptions import InvalidInput, RegistryError
from django_jobchains.processors import Continuation, JobType, Processors, RunningJob


@dataclass
class Charge:
    order_id: int


class Address(TypedDict):
    street: str


@pytest.fixture(autouse=True)
def _no_pydantic(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)


@pytest.mark.parametrize("value", [Charge, Address, list[Charge], dict[str, Charge]])
def test_a_type_that_is_not_json_is_refused_where_it_is_declared(value):
    for declare in (
        lambda: JobType("charge", input=value),
        lambda: JobType("charge", output=value),
        lambda: Processors().register("charge", input=value)(lambda job: None),
    ):
        with pytest.raises(RegistryError, match=r"needs pydantic: install django_jobchains\[typed\], or use JSON"):
            declare()


def test_an_annotation_that_is_not_json_is_refused_where_it_is_declared():
    with pytest.raises(RegistryError, match="Charge as input or output needs pydantic"):

        @Processors().register("charge")
        def charge(job: RunningJob[Charge]) -> None: ...


@pytest.mark.parametrize(
    "annotation",
    [
        Any,
        None,
        type(None),
        object,
        str,
        int,
        float,
        bool,
        list,
        dict,
        list[int],
        dict[str, list[float]],
        dict[str, Any],
        list[dict[str, Any]],
        str | None,
        Optional[int],  # noqa: UP045
        dict[str, str | int | None],
    ],
    ids=str,
)
def test_json_types_need_no_pydantic(annotation):
    JobType("plain", input=annotation, output=annotation)


def test_json_annotations_need_no_pydantic():
    @Processors().register("plain")
    def plain(job: RunningJob[dict[str, int]]) -> int | Continuation:
        return 1

    plain.item({"a": 1})
    with pytest.raises(InvalidInput, match=r"At \$\.a: set is not JSON"):
        plain.item({"a": {1}})
