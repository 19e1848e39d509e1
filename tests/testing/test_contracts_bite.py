"""The contracts fail for stores and notifiers with a defect: each defect is noticed."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from django.db import connection

from tests.settings import DATABASE_NAME

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BROKEN = Path(__file__).with_name("broken.py")
ROOT = BROKEN.parents[2]
PLUGINS = ("pytest_django.plugin", "pytest_timeout", "django_jobchains.pytest_plugin")

#: The tests that must fail, at least, for each class in ``broken.py``.
RED = {
    "Unfenced": {"test_a_stale_attempt_changes_nothing", "test_an_attempt_ends_once"},
    "ContinuesTwice": {"test_a_chain_continues_once", "test_a_stale_attempt_changes_nothing"},
    "ReapsItsOwn": {"test_running_leases_and_the_callers_own_are_not_reaped"},
    "ForgetsFailures": {
        "test_a_failed_job_is_followed_by_a_chain",
        "test_jobs_that_fail_with_a_blocker_are_followed",
    },
    "ClaimsEarly": {"test_a_job_that_is_not_due_is_not_claimed"},
    "ClaimsPausedQueues": {"test_only_the_given_queues_are_claimed"},
    "ClaimsUnordered": {"test_a_higher_priority_goes_first_whatever_its_type_and_queue"},
    "RevivesCompleted": {"test_jobs_that_failed_or_were_cancelled_are_retried"},
    "PrunesWhatIsNeeded": {"test_a_needed_chain_is_not_pruned"},
    "LogsStaleAttempts": {"test_lines_of_an_earlier_attempt_are_not_stored"},
    "CountsAgain": {"test_counts_are_added_to_the_minute_and_the_hour"},
    "OneByOne": {"test_the_number_of_statements_does_not_depend_on_the_batch"},
    "Silent": {"test_a_new_listener_is_asked_to_query"},
    "Generous": {"test_workers_that_ask_share_the_jobs", "test_processes_share_a_budget"},
    "Ungrouped": {"test_each_group_has_a_budget"},
    "Uncounted": {"test_counts_arrive_with_an_id_that_all_listeners_share"},
    "Deafening": {"test_a_closed_notifier_can_be_used_again"},
    "Touchy": {"test_a_forged_hint_raises_no_error"},
}
#: The same for databases that lock rows.
RED_WITH_LOCKS = {
    "ChecksWithoutLock": {"test_the_last_two_blockers_that_end_at_once_free_the_job"},
    "WaitsForLocked": {"test_a_locked_job_is_skipped_and_others_are_claimed"},
    "DeletesJobsLast": {"test_a_deletion_waits_for_the_log_of_the_job"},
    "WaitsForJobs": {"test_lines_are_visible_while_the_job_is_being_completed"},
    "FindsKeysWithoutLock": {"test_two_connections_with_the_same_key_start_one_chain"},
}
EXPECTED = RED | (RED_WITH_LOCKS if connection.vendor == "postgresql" else {})


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str]]:
    """Run the broken classes; return the class, the test that failed, and its message."""
    report = tmp_path_factory.mktemp("bite") / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-k", "not rolled_back and not first_end", f"--junitxml={report}"]
    # Without autoloaded plugins: pytest would rewrite the assertions of all of them, as registered or not.
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
def test_a_defect_is_noticed(failures: list[tuple[str, str, str]], broken: str) -> None:
    assert EXPECTED[broken] <= {test for name, test, _ in failures if name == broken}


def test_every_defect_is_listed(failures: list[tuple[str, str, str]]) -> None:
    assert {name for name, _, _ in failures} == EXPECTED.keys()


def test_a_failure_shows_the_compared_values(failures: list[tuple[str, str, str]]) -> None:
    (text,) = (text for name, test, text in failures if (name, test) == ("Ungrouped", "test_each_group_has_a_budget"))
    assert "assert [2, 0, 0, 0] == [2, 2, 2, 2]" in text
