"""The contracts are red for a store or a notifier that is wrong: each is broken in one way, and it is seen."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from django.db import connection

from tests.settings import DATABASE_NAME

pytestmark = pytest.mark.slow

BROKEN = Path(__file__).with_name("broken.py")
ROOT = BROKEN.parents[2]
PLUGINS = ("pytest_django.plugin", "pytest_timeout", "django_jobchains.pytest_plugin")

#: What has to be red, at least, for each.
RED = {
    "Unfenced": {"test_a_stale_attempt_changes_nothing", "test_an_attempt_ends_once"},
    "GoesOnTwice": {"test_a_chain_goes_on_once", "test_a_stale_attempt_changes_nothing"},
    "ReapsItsOwn": {"test_a_lease_that_runs_or_is_the_callers_own_is_left"},
    "ClaimsEarly": {"test_a_job_that_is_not_due_is_left"},
    "ClaimsPausedQueues": {"test_only_the_queues_that_are_asked_for"},
    "ClaimsUnordered": {"test_a_higher_priority_goes_first_whatever_its_type_and_queue"},
    "RevivesCompleted": {"test_jobs_that_failed_or_were_cancelled_are_retried"},
    "PrunesWhatIsNeeded": {"test_a_chain_that_is_needed_stays"},
    "HearsStaleAttempts": {"test_what_an_earlier_attempt_says_is_not_kept"},
    "CountsAgain": {"test_what_workers_tell_is_added_to_the_minute_and_the_hour"},
    "OneByOne": {"test_many_take_no_more_statements_than_few"},
    "Silent": {"test_a_new_listener_is_told_to_look"},
    "Generous": {"test_all_who_ask_get_the_jobs_between_them", "test_processes_share_a_budget"},
    "Ungrouped": {"test_each_group_has_its_own"},
    "Uncounted": {"test_counts_arrive_with_an_id_that_all_who_hear_share"},
    "Deafening": {"test_a_notifier_that_was_closed_may_be_used_again"},
    "Touchy": {"test_a_forged_hint_is_no_error"},
}
#: Of databases that lock rows.
RED_WITH_LOCKS = {
    "LooksWithoutLock": {"test_the_last_two_blockers_that_end_at_once_free_the_job"},
    "WaitsForLocked": {"test_a_locked_job_is_passed_by_and_hides_no_other"},
    "DeletesJobsLast": {"test_a_job_about_which_something_is_being_said_is_deleted_after_it"},
    "WaitsForJobs": {"test_it_is_there_while_the_job_is_locked_to_be_completed"},
    "LooksForKeysWithoutLock": {"test_two_connections_with_one_key_start_one_chain"},
}
EXPECTED = RED | (RED_WITH_LOCKS if connection.vendor == "postgresql" else {})


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str]]:
    """What was broken, the test that failed, and what it said."""
    report = tmp_path_factory.mktemp("bite") / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-k", "not rolled_back and not who_ends", f"--junitxml={report}"]
    # Of plugins that are found by themselves pytest rewrites all asserts, whatever they say.
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "JOBCHAINS_TEST_NAME": f"{DATABASE_NAME}_bite"}
    plugins = [part for name in PLUGINS for part in ("-p", name)]
    command = [sys.executable, "-m", "pytest", *plugins, *options, str(BROKEN)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    return [
        (case.attrib["classname"].rpartition(".Test")[2], case.attrib["name"].partition("[")[0], failure.text or "")
        for case in ET.parse(report).iter("testcase")
        if (failure := case.find("failure")) is not None
    ]


@pytest.mark.parametrize("broken", EXPECTED)
def test_what_is_broken_is_seen(failures: list[tuple[str, str, str]], broken: str) -> None:
    assert EXPECTED[broken] <= {test for name, test, _ in failures if name == broken}


def test_all_that_was_broken_is_looked_for(failures: list[tuple[str, str, str]]) -> None:
    assert {name for name, _, _ in failures} == EXPECTED.keys()


def test_a_failure_says_what_it_compared(failures: list[tuple[str, str, str]]) -> None:
    (text,) = (text for name, test, text in failures if (name, test) == ("Ungrouped", "test_each_group_has_its_own"))
    assert "assert [2, 0, 0, 0] == [2, 2, 2, 2]" in text
