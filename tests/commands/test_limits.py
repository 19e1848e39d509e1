"""``limits``: its operations and its output. ``tests/limits`` tests what they do."""

import pytest

from django_jobchains import limits
from django_jobchains.processors import Concurrency, Rate
from django_jobchains.store.queues import Override
from django_jobchains.testing import run_due_jobs

pytestmark = pytest.mark.django_db


def itself(value):
    return value


@pytest.fixture
def _limits(processors):
    processors.register("limits.sync", concurrency=Concurrency(2, key=itself), rate=Rate(100, 60))(lambda job: None)
    processors.register("limits.charge", concurrency=Concurrency(5, group="gateway"))(lambda job: None)


def test_nothing(run, registry):
    assert run("limits").lines == ["No limits: no type declares one, and no queue has one."]
    assert run("limits", "--format", "json").json == {"limits": []}


def test_keys_that_wait_for_their_rate(run, processors):
    send = processors.register("limits.send", rate=Rate(1, 3_600, key=itself))(lambda job: None)
    send.enqueue("acme")
    run_due_jobs()
    assert "acme (0, next in " in run("limits").lines[1]


def test_an_overridden_rate_that_the_code_no_longer_declares(run, processors, store):
    processors.register("limits.sync", concurrency=Concurrency(2))(lambda job: None)
    store.queues.override("limits.sync", Override(rate=5))
    assert run("limits").lines[1].split() == ["limits.sync", "type", "0", "2", "0"]


@pytest.mark.usefixtures("_limits")
class TestOperations:
    def test_set_list_and_reset(self, run):
        assert run("limits", "set", "gateway", "--concurrency", "0").lines == ["gateway: concurrency 0."]
        assert run("limits", "set", "--queue", "mail", "--concurrency", "3").lines == ["queue mail: concurrency 3."]
        title, gateway, sync, mail = run("limits").lines
        assert title.split()[:4] == ["LIMIT", "KIND", "RUNNING", "AT"]
        assert gateway.split() == ["gateway", "group", "0", "0", "0", "5", "at", "once"]
        assert sync.split() == ["limits.sync", "type", "0", "2", "per", "key", "100", "in", "60", "s", "0"]
        assert mail.split() == ["mail", "queue", "0", "3", "0"]
        assert run("limits", "reset", "gateway").lines == ["gateway: reset."]
        assert run("limits", "reset", "--queue", "mail", "--format", "json").json == {"queue": "mail", "reset": True}
        assert [limit.is_overridden for limit in limits.list()] == [False, False]

    def test_json(self, run):
        given = run("limits", "set", "limits.sync", "--rate", "5", "--concurrency", "1", "--format", "json").json
        assert given == {"limit": "limits.sync", "concurrency": 1, "rate": 5}
        [_, sync] = run("limits", "--format", "json").json["limits"]
        assert (sync["name"], sync["declared_rate"], sync["rate"], sync["is_declared"]) == ("limits.sync", 100, 5, True)

    @pytest.mark.parametrize(
        ("words", "code", "error"),
        [
            (["set", "limits.snyc", "--concurrency", "1"], 1, "Did you mean 'limits.sync'?"),
            (["set", "gateway", "--rate", "1"], 1, "'gateway' does not declare rate="),
            (["set", "gateway", "--concurrency", "-1"], 1, "concurrency=-1 is not a whole number from 0"),
            (["set", "--queue", "mail", "--rate", "1"], 2, "A queue has no rate. Pass --concurrency"),
            (["set", "gateway"], 2, "'limits set' takes --concurrency or --rate."),
            (["reset"], 2, "'limits reset' takes NAME or --queue."),
            (["reset", "gateway", "--rate", "1"], 2, "'limits reset' takes NAME or --queue, and nothing else."),
            (["list", "gateway"], 2, "'limits list' takes nothing else."),
        ],
    )
    def test_errors(self, run, words, code, error):
        result = run("limits", *words)
        assert (result.code, error in result.error) == (code, True)
