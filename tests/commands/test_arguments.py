"""Arguments: what durations are, and errors that name the remedy. Nothing changes then."""

import shlex
from dataclasses import dataclass
from datetime import timedelta

import pytest

from django_jobchains.cli import converters
from django_jobchains.models import Job, QueueState
from django_jobchains.processors import JobType
from tests.support.chains import pending

ID = "00000000-0000-0000-0000-000000000005"
NOT_JSON = "is not JSON"


@dataclass(frozen=True)
class Refund:
    order_id: int
    reason: str
    days: int = 14


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", timedelta(seconds=90)), ("5m", timedelta(minutes=5)), ("5min", timedelta(minutes=5)),
        ("1h30m", timedelta(hours=1, minutes=30)), ("30d", timedelta(days=30)), ("2w", timedelta(weeks=2)),
        ("1.5h", timedelta(hours=1.5)), ("250ms", timedelta(milliseconds=250)), ("1d 12h", timedelta(days=1.5)),
    ],
)  # fmt: skip
def test_durations_can_be_parsed(text, expected):
    assert converters.duration(text) == expected


@pytest.mark.parametrize("text", ["", "5", "d", "5x", "-5d", "5d-", "soon", "9" * 400 + "w", "1e5d"])
def test_invalid_durations_are_refused(text):
    with pytest.raises(converters.ArgumentTypeError):
        converters.duration(text)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("enqueue", "the following arguments are required: TYPE"),
        ("enqueue shop.absent", "No job type 'shop.absent'. Is its app in INSTALLED_APPS"),
        ("enqueue shop.receipt", "'shop.receipt' is declared with entry=False, so it cannot be enqueued."),
        ("enqueue shop.refund", """such as --input '{"order_id": 0, "reason": "", "days": 14}'."""),
        ("""enqueue shop.refund --input '{"order_id": 1}'""", "reason: Field required"),
        ("""enqueue shop.charge --input '"five"'""", "Not an int: Input should be a valid integer"),
        ("enqueue shop.charge --input five", "'five' is not JSON"),
        ("enqueue shop.charge --input -", "On standard input: '{' is not JSON"),
        ("enqueue shop.plain --queue ''", "is not a name: pass 1 to 100 printable characters"),
        ("enqueue shop.plain --priority 40000", "is not a priority: write an integer from -32768 to 32767"),
        ("enqueue shop.plain --priority high", "is not a priority"),
        ("enqueue shop.plain --delay 5", "is not a duration: write for example 90s, 5m, 12h, 30d or 2w"),
        ("enqueue shop.plain --delay 999999w", "is not a length of time below a thousand years"),
        ("enqueue shop.plain --run-at tomorrow", "'tomorrow' is not a time: write for example 2026-11-22"),
        ("enqueue shop.plain --run-at 2026-02-30T10:00", "is not a time"),
        ("enqueue shop.plain --run-at 9999-12-31T23:59-01:00", "is before the year 1 or after the year 9999 in UTC"),
        ("enqueue shop.plain --delay 5m --run-at 2099-01-01T00:00Z", "not allowed with argument"),
        ("enqueue shop.plain --deduplicate ''", "is not a deduplication key"),
        ("complete CHAIN", "required: --output"),
        *((f"complete CHAIN --output {shlex.quote(text)}", NOT_JSON) for text in ("", "{", "NaN", "text", "[1,]")),
        ("complete CHAIN --output -", "On standard input: '{' is not JSON"),
        ("complete CHAIN --output " + "[" * 100_000, f"{NOT_JSON} ("),
        (f"complete {ID} --output 1", "No chain or job"),
        ("retry 4711", "'4711' is not an id: give the complete UUID"),
        ("retry -", "On standard input: '{' is not an id"),
        ("prune --older-than 30", "'30' is not a duration: write for example 90s, 5m, 12h, 30d or 2w"),
        ("prune --older-than=-5d", "is not a duration"),
        ("prune --older-than 1d --status running", "'running' is not a final status: choose from completed"),
        ("prune --older-than 1d --batch 0", "from 1 to 10,000"),
        ("list --after nonsense", "'nonsense' is not a cursor of these pages. Start again without one"),
        ("list --status done", "'done' is not a status: choose from blocked, scheduled, pending, running"),
        ("list --limit 0", "integer from 1 to 100,000"),
        ("list --limit 100001", "integer from 1 to 100,000"),
        ("list --blocked-by 5", "'5' is not an id"),
        ("list --created-after yesterday", "'yesterday' is not a time: write for example 2026-11-22"),
        ("list --format xml", "invalid choice"),
        ("list --database nowhere", "DATABASES has no alias 'nowhere'. Known: default"),
        ("show 5", "'5' is not an id"),
        (f"show {ID}", f"No chain or job {ID}: it was never committed, or it was deleted."),
        ("types shopp.*", "No job type matches shopp.*. Run 'types' to list all."),
        ("pause", "required: QUEUE"),
        ("pause ''", "is not a name: pass 1 to 100 printable characters"),
        (f"resume {'x' * 101}", "is not a name"),
        ("limit mail", "required: N|none"),
        ("limit mail 0", "'0' must be an integer from 1"),
        ("limit mail many", "'many' must be an integer from 1"),
        ("health --max-age soon", "'soon' is not a duration: write for example 90s, 5m, 12h, 30d or 2w"),
        ("health --max-age=-1", "'-1' must be a number of seconds from 0"),
        ("health --max-backlog 1.5", "'1.5' must be an integer from 0"),
        ("health --queue ''", "is not a name"),
    ],
)
def test_an_error_names_the_remedy_and_nothing_changes(run, store, registry, words, error):
    registry.declared["shop.refund"] = JobType("shop.refund", input=Refund)
    chain = pending(store)
    done = run(*shlex.split(words.replace("CHAIN", str(chain.id))), stdin="{")
    assert done.code > 0
    assert error in done.error
    assert (Job.objects.count(), chain.refresh().status, QueueState.objects.count()) == (1, "pending", 0)


@pytest.mark.django_db
def test_errors_do_not_contain_values_of_the_input(run, registry):
    registry.declared["shop.refund"] = JobType("shop.refund", input=Refund)
    done = run("enqueue", "shop.refund", "--input", '{"order_id": "canary-77", "reason": "late"}')
    assert "order_id: Input should be a valid integer" in done.error
    assert "canary-77" not in done.error
