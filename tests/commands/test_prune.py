"""``prune`` deletes chains that ended long ago."""

import pytest

from django_jobchains import testing
from django_jobchains.models import Job
from tests.support.chains import cancelled, completed, failed, pending

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _old(store):
    """Create three chains that ended ten days ago, and two open ones."""
    for make in (completed, cancelled, failed, pending, pending):
        make(store)
    with testing.clock() as clock:
        clock.advance(864_000)
        yield


def test_older_chains_are_deleted_and_counted(run):
    assert run("prune", "--older-than", "11d").out == "0 chains deleted.\n"
    done = run("prune", "--older-than", "9d12h")
    assert (done.code, done.out) == (0, "2 chains deleted.\n")
    assert Job.objects.with_status("failed", "pending").count() == Job.objects.count() == 3


def test_a_dry_run_deletes_nothing(run):
    assert run("prune", "--older-than", "1w", "--dry-run").out == "2 chains would be deleted.\n"
    assert run("prune", "--older-than", "1w", "--dry-run", "--format", "json").json == {"would_be_deleted": 2}
    assert Job.objects.count() == 5


def test_without_an_age_the_retention_settings_apply(run, settings):
    assert run("prune").out == "0 chains deleted.\n"
    settings.JOBCHAINS = {"RETENTION_COMPLETED_SECONDS": 86_400, "RETENTION_FAILED_SECONDS": 86_400}
    assert run("prune", "--status", "failed", "--dry-run").out == "1 chain would be deleted.\n"
    assert run("prune").out == "2 chains deleted.\n"
    assert Job.objects.with_status("cancelled", "pending").count() == Job.objects.count() == 3


def test_only_chains_with_the_given_statuses_and_types_are_deleted(run):
    words = ("prune", "--older-than", "1h", "--format", "json")
    assert run(*words, "--type", "shop.mail").json == {"deleted": 0}
    assert run(*words, "--status", "failed", "--status", "cancelled", "--type", "shop.ship").json == {"deleted": 2}
    assert run(*words, "--batch", "1").json == {"deleted": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--older-than", "30"], "'30' is not a duration: write for example 90s, 5m, 12h, 30d or 2w"),
        (["--older-than", "30 days ago"], "is not a duration"),
        (["--older-than", "-5d"], "expected one argument"),
        (
            ["--older-than", "1d", "--status", "running"],
            "'running' is not a final status: choose from completed",
        ),
        (["--older-than", "1d", "--batch", "0"], "from 1 to 10,000"),
    ],
)
def test_an_invalid_argument_is_an_error_and_deletes_nothing(run, words, message):
    assert message in run("prune", *words).error
    assert Job.objects.count() == 5
