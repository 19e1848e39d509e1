"""``prune``: what ended long ago goes, from the command line."""

from collections.abc import Iterator

import pytest

from django_jobchains import testing
from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.commands.conftest import Run
from tests.interventions.chains_at import cancelled, completed, failed, pending

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _old(store: Store) -> Iterator[None]:
    """Three chains that ended ten days ago, and two that are open."""
    for make in (completed, cancelled, failed, pending, pending):
        make(store)
    with testing.clock() as clock:
        clock.advance(864_000)
        yield


def test_it_deletes_what_is_older_and_says_how_many(run: Run) -> None:
    assert run("prune", "--older-than", "11d").out == "0 chains deleted.\n"
    done = run("prune", "--older-than", "9d12h")
    assert (done.code, done.out) == (0, "2 chains deleted.\n")
    assert Job.objects.with_status("failed", "pending").count() == Job.objects.count() == 3


def test_a_dry_run_deletes_nothing(run: Run) -> None:
    assert run("prune", "--older-than", "1w", "--dry-run").out == "2 chains would be deleted.\n"
    assert run("prune", "--older-than", "1w", "--dry-run", "--format", "json").json == {"would_be_deleted": 2}
    assert Job.objects.count() == 5


def test_statuses_and_types_narrow_it(run: Run) -> None:
    words = ("prune", "--older-than", "1h", "--format", "json")
    assert run(*words, "--type", "shop.mail").json == {"deleted": 0}
    assert run(*words, "--status", "failed", "--status", "cancelled", "--type", "shop.ship").json == {"deleted": 2}
    assert run(*words, "--batch", "1").json == {"deleted": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required: --older-than"),
        (["--older-than", "30"], "'30' is no duration: write 90s, 5m, 12h, 30d or 2w"),
        (["--older-than", "30 days ago"], "is no duration"),
        (["--older-than", "-5d"], "expected one argument"),
        (["--older-than", "1d", "--status", "running"], "'running' cannot be pruned: completed, failed or cancelled"),
        (["--older-than", "1d", "--batch", "0"], "from 1 to 10,000"),
    ],
)
def test_wrong_words_are_an_error_and_nothing_is_deleted(run: Run, words: list[str], message: str) -> None:
    assert message in run("prune", *words).error
    assert Job.objects.count() == 5
