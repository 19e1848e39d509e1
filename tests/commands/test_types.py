"""``types``: every job type with its settings, and where each is set."""

from dataclasses import fields
from typing import Any

import pytest

from django_jobchains.declare.policies import AttemptPolicy
from django_jobchains.processors import JobType
from tests.commands.conftest import Run


def settings_of(run: Run, name: str) -> dict[str, tuple[Any, str]]:
    [kind] = run("types", name, "--format", "json").json["types"]
    return {key: (setting["value"], setting["source"]) for key, setting in kind["settings"].items()}


def test_each_setting_has_its_source(run, settings):
    settings.JOBCHAINS = {"TIMEOUT_SECONDS": 90}
    charge = settings_of(run, "shop.charge")
    assert charge["max_attempts"] == (3, "processor")
    assert charge["lease"] == ({"seconds": 30}, "processor")
    assert charge["backoff"][1] == "slice"
    assert charge["backoff"][0]["initial_seconds"] == 1
    assert charge["timeout_seconds"] == (90, "settings")
    assert charge["queue"] == ("bank", "slice")
    assert charge["priority"] == (5, "processor")
    assert charge["mode"] == ("staged", "library")
    receipt = settings_of(run, "shop.receipt")
    assert receipt["queue"] == ("post", "processor")
    assert receipt["mode"] == ("atomic", "processor")
    assert receipt["max_attempts"] == (25, "library")
    assert receipt["fail_on"] == (["ValueError"], "processor")
    assert settings_of(run, "shop.plain")["priority"] == (0, "library")


@pytest.mark.parametrize(
    ("jobchains", "name"),
    [
        ({"BACKOFF_JITTER": 0}, "backoff"),
        ({"LEASE_SECONDS": 5}, "lease"),
        ({"MAX_ATTEMPTS": 5}, "max_attempts"),
        ({"QUEUE": "slow"}, "queue"),
    ],
)
def test_a_setting_of_the_project_has_its_source(run, settings, registry, jobchains, name):
    [part] = registry.slices
    part.queue = part.by_name["shop.plain"].__dict__["queue"] = None
    part.by_name["shop.plain"].__dict__["policies"] = (type(part.policy)(), type(part.policy)())
    assert settings_of(run, "shop.plain")[name][1] == "library"
    settings.JOBCHAINS = jobchains
    assert settings_of(run, "shop.plain")[name][1] == "settings"


def test_every_field_of_a_policy_is_shown(run):
    assert {field.name for field in fields(AttemptPolicy)} <= settings_of(run, "shop.charge").keys()


def test_the_text_is_readable(run):
    out = run("types", "shop.charge").out
    assert out.splitlines()[0] == "shop.charge"
    assert "int → int · continues with shop.receipt" in out
    assert "in the slice tests.commands.conftest" in out
    for words in (
        "max attempts  3 processor",
        "lease         30 s processor",
        "backoff       1 s, × 2 each time, at most 8 s slice",
        "timeout       no limit library",
    ):
        assert words.split() in [line.split() for line in out.splitlines()], words


def test_a_type_without_a_processor_has_a_note(run):
    done = run("types", "shop.ship", "--format", "json").json["types"]
    assert (done[0]["name"], done[0]["handler"], done[0]["settings"]) == ("shop.ship", None, {})
    assert "No processor: jobs of this type are completed from outside." in run("types", "shop.ship").out


def test_patterns_select_types_and_no_match_is_an_error(run):
    names = [kind["name"] for kind in run("types", "--format", "json").json["types"]]
    assert names == sorted(["shop.charge", "shop.receipt", "shop.plain", "shop.ship", "shop.mail"])
    assert [kind["name"] for kind in run("types", "*p*", "*l", "--format", "json").json["types"]] == [
        name for name in names if "p" in name or name.endswith("l")
    ]
    done = run("types", "shopp.*")
    assert (done.code, done.error) == (1, "No job type matches shopp.*. Run 'types' to list all.")


class Money:
    def load(self, value: Any) -> int:
        return int(value)

    def dump(self, value: int) -> Any:
        return value


def test_required_blockers_are_in_their_declared_order(run, registry):
    registry.declared["shop.total"] = JobType("shop.total", blockers=("shop.ship", "shop.charge", "shop.ship"))
    assert "waits for shop.ship, shop.charge, shop.ship" in run("types", "shop.total").out


def test_payload_types_are_shown_by_name(run, registry):
    registry.declared["shop.pay"] = JobType("shop.pay", input=Money(), output=Any)
    assert "Money → any JSON" in run("types", "shop.pay").out


@pytest.mark.parametrize("width", [60, 100])
def test_lines_fit_the_terminal(run, width):
    assert max(map(len, run("types", width=width).lines)) <= width
