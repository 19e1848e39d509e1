"""``types``: every job type with its settings, and where each is set."""

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import pytest

from django_jobchains.declare.policies import AttemptPolicy
from django_jobchains.processors import Concurrency, JobType, Processors, Rate

pytestmark = pytest.mark.django_db


def settings_of(run, name):
    [kind] = run("types", name, "--format", "json").json["types"]
    return {key: (setting["value"], setting["source"]) for key, setting in kind["settings"].items()}


def test_each_setting_has_its_source(run, settings):
    settings.JOBCHAINS = {"TIMEOUT_SECONDS": 90}
    charge, receipt = settings_of(run, "shop.charge"), settings_of(run, "shop.receipt")
    assert charge["backoff"][0]["initial_seconds"] == 1
    assert charge["backoff"][1] == "slice"
    assert {field.name for field in fields(AttemptPolicy)} <= charge.keys()
    expected = {
        "max_attempts": (3, "processor"),
        "lease": ({"seconds": 30}, "processor"),
        "timeout_seconds": (90, "settings"),
        "queue": ("bank", "slice"),
        "priority": (5, "processor"),
        "mode": ("staged", "library"),
    }
    assert {name: charge[name] for name in expected} == expected
    expected = {
        "max_attempts": (25, "library"),
        "queue": ("post", "processor"),
        "mode": ("atomic", "processor"),
        "fail_on": (["ValueError"], "processor"),
        "priority": (0, "library"),
    }
    assert {name: receipt[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("backoff", {"BACKOFF_JITTER": 0}),
        ("lease", {"LEASE_SECONDS": 5}),
        ("max_attempts", {"MAX_ATTEMPTS": 5}),
        ("queue", {"QUEUE": "slow"}),
    ],
)
def test_a_setting_of_the_project_has_its_source(run, settings, registry, name, setting):
    registry.add(part := Processors())
    part.register("shop.bare")(lambda job: None)
    assert settings_of(run, "shop.bare")[name][1] == "library"
    settings.JOBCHAINS = setting
    assert settings_of(run, "shop.bare")[name][1] == "settings"


def test_the_text_is_readable(run):
    out = run("types", "shop.charge").out
    assert out.splitlines()[0] == "shop.charge"
    assert "int → int · continues with shop.receipt" in out
    assert "in the slice tests.commands.conftest" in out
    assert "observer" not in out
    for words in (
        "max attempts  3 processor",
        "lease         30 s processor",
        "backoff       1 s, × 2 each time, at most 8 s slice",
        "timeout       no limit library",
    ):
        assert words.split() in [line.split() for line in out.splitlines()], words


def test_without_names_each_type_is_one_line(run):
    header, *lines = run("types").lines
    assert header.split() == ["TYPE", "INPUT", "QUEUE", "ATTEMPTS", "HANDLER"]
    handler = "tests.commands.conftest.registry.<locals>.charge"
    assert lines[0].split() == ["shop.charge", "int", "bank", "3", handler]
    assert [line.split()[0] for line in lines] == [
        "shop.charge",
        "shop.mail",
        "shop.plain",
        "shop.receipt",
        "shop.ship",
    ]
    assert lines[-1].endswith("none: completed from outside")


def test_a_project_without_types_has_an_empty_list(run, registry):
    registry.slices, registry.declared = [], {}
    assert run("types").lines == [
        "No job types and no record workers. Is their app in INSTALLED_APPS, with a jobs module?"
    ]
    assert run("types", "--format", "json").json == {"types": [], "records": []}


def test_a_type_without_a_processor_has_a_note(run):
    [kind] = run("types", "shop.ship", "--format", "json").json["types"]
    assert (kind["name"], kind["handler"], kind["settings"]) == ("shop.ship", None, {})
    assert "No processor: jobs of this type are completed from outside." in run("types", "shop.ship").out


def test_patterns_select_types(run):
    for words, names in (
        ([], ["shop.charge", "shop.mail", "shop.plain", "shop.receipt", "shop.ship"]),
        (["*t", "*p"], ["shop.receipt", "shop.ship"]),
    ):
        assert [kind["name"] for kind in run("types", *words, "--format", "json").json["types"]] == names


class Money:
    def load(self, value):
        return int(value)

    def dump(self, value):
        return value


def test_required_blockers_are_in_their_declared_order_and_payload_types_have_names(run, registry):
    blockers = ("shop.ship", "shop.charge", "shop.ship")
    registry.declared["shop.pay"] = JobType("shop.pay", input=Money(), output=Any, blockers=blockers)
    out = run("types", "shop.pay").out
    assert "waits for shop.ship, shop.charge, shop.ship" in out
    assert "Money → any JSON" in out


@dataclass(frozen=True)
class Fixed:
    """A callable object."""

    seconds: float = 5

    def __call__(self, *given):
        return self.seconds


@pytest.mark.parametrize(("value", "name"), [(Fixed(), f"{__name__}.Fixed"), (partial(max, 1), "functools.partial")])
def test_callable_objects_are_shown_by_name(run, registry, value, name):
    registry.add(part := Processors())
    part.register("shop.fixed", backoff=value, concurrency=Concurrency(2, key=value))(lambda job: None)
    found = settings_of(run, "shop.fixed")
    assert (found["backoff"][0], found["concurrency"][0]["key"]) == (name, name)
    assert f"2 of each {name}" in run("types", "shop.fixed").out


def test_limits_have_their_sources(run, registry):
    part = Processors(concurrency=Concurrency(3, group="gateway"))
    part.register("limits.one", fair="tenant")(lambda job: None)
    part.register("limits.two", concurrency=Concurrency(2, key=len), rate=Rate(5, 60, 2))(lambda job: None)
    registry.add(part)
    one, two = settings_of(run, "limits.one"), settings_of(run, "limits.two")
    assert one["concurrency"] == ({"limit": 3, "key": None, "group": "gateway"}, "slice")
    assert one["fair"] == ("tenant", "processor")
    assert two["concurrency"] == ({"limit": 2, "key": "len", "group": None}, "processor")
    assert two["rate"] == ({"limit": 5, "per": 60.0, "burst": 2, "key": None, "group": None}, "processor")
    assert "fair" not in two
    text = run("types", "limits.*").out
    assert "3 in the group gateway" in text
    assert "2 of each len" in text
    assert "5 per 60 s burst 2" in text
