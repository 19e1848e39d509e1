"""``schedules``: its operations and its output. ``tests/schedules`` tests what they do."""

import pytest

from django_jobchains import schedules
from django_jobchains.models import Job, Schedule
from tests.support.chains import mail

pytestmark = pytest.mark.django_db


@pytest.fixture
def _schedules(registry):
    schedules.create("nightly", mail, cron="0 3 * * *", timezone="Europe/Berlin", input={"password": "x"})
    schedules.create("often", mail, every=300, overlap="skip")


def test_nothing(run):
    assert run("schedules").lines == ["No schedules. Those that the code declares are stored when a worker starts."]
    assert run("schedules", "--format", "json").json == {"schedules": []}


@pytest.mark.usefixtures("_schedules")
class TestOperations:
    def test_list(self, run):
        title, nightly, often = run("schedules", "list").lines
        assert title.split() == ["SCHEDULE", "STATE", "RULE", "TYPE", "NEXT", "LAST", "LAST", "ERROR"]
        assert nightly.split()[:8] == ["nightly", "active", "0", "3", "*", "*", "*", "Europe/Berlin"]
        assert often.split()[:5] == ["often", "active", "every", "5", "min"]
        [first, second] = run("schedules", "--format", "json").json["schedules"]
        assert (first["name"], first["cron"], first["state"], second["every_seconds"]) == (
            "nightly", "0 3 * * *", "active", 300,
        )  # fmt: skip

    def test_show(self, run):
        lines = run("schedules", "show", "nightly").lines
        assert lines[:2] == ["nightly: " + mail.name, "  active · 0 3 * * * Europe/Berlin"]
        assert "password" in lines[2]
        assert "'x'" not in lines[2]
        assert lines[-1].split()[:2] == ["next", "ticks"]
        assert not [line for line in lines if line.split()[:2] == ["next", "tick"]]
        shown = run("schedules", "show", "nightly", "--format", "json").json
        assert (len(shown["next_ticks"]), shown["next_ticks"][0]) == (5, shown["next_tick_at"])

    def test_show_has_the_id_of_the_last_chain(self, run):
        chain_id = mail.enqueue().id
        Schedule.objects.filter(name="often").update(last_chain_id=chain_id)
        assert ["last", "chain", "id", str(chain_id)] in [
            line.split() for line in run("schedules", "show", "often").lines
        ]

    def test_pause_and_resume(self, run):
        assert run("schedules", "pause", "often", "nightly").lines == ["often, nightly paused."]
        assert [row.is_paused for row in schedules.list()] == [True, True]
        assert "paused" in run("schedules").lines[1]
        assert run("schedules", "resume", "often", "--format", "json").json == {"resumed": ["often"]}
        assert [row.is_paused for row in schedules.list()] == [True, False]

    def test_run_now_and_next(self, run):
        assert run("schedules", "run-now", "often").lines == [str(Job.objects.get().id)]
        assert run("schedules", "run-now", "often", "--format", "json").json["type"] == mail.name
        lines = run("schedules", "next", "often", "--count", "2").lines
        assert len(lines) == 2
        assert lines[0].endswith("in 4 min")
        ticks = run("schedules", "next", "nightly", "--format", "json").json["next_ticks"]
        assert [tick[-1] for tick in ticks] == ["Z"] * 5

    @pytest.mark.parametrize(
        ("words", "code", "error"),
        [
            (["list", "often"], 2, "'schedules list' takes no name."),
            (["pause"], 2, "'schedules pause' takes at least one name."),
            (["show"], 2, "'schedules show' takes one name."),
            (["next", "often", "nightly"], 2, "'schedules next' takes one name."),
            (["show", "other"], 1, "No schedule 'other'."),
            (["pause", "often", "other"], 1, "No schedule 'other'."),
            (["run-now", "other"], 1, "No schedule 'other'. Schedules that the code declares are stored when"),
            (["next", "nihgtly"], 1, "No schedule 'nihgtly'. Did you mean 'nightly'?"),
            (["pause", "oftn"], 1, "No schedule 'oftn'. Did you mean 'often'?"),
        ],
    )
    def test_errors(self, run, words, code, error):
        done = run("schedules", *words)
        assert (done.code, done.error[: len(error)]) == (code, error)
        assert not any(row.is_paused for row in schedules.list())
