"""Arguments: what durations are, and errors that name the remedy. Nothing changes then."""

import shlex
from argparse import SUPPRESS
from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.core.management.base import BaseCommand

from django_jobchains.cli import converters
from django_jobchains.management.commands import jobchains, run_jobworker
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
    assert converters.age(text) == expected
    assert converters.duration(text) == expected.total_seconds()


@pytest.mark.parametrize("text", ["", "d", "5x", "-5d", "5d-", "soon", "9" * 400 + "w", "1e5d", "-1", "nan", "inf"])
def test_invalid_durations_are_refused(text):
    for convert in (converters.duration, converters.age):
        with pytest.raises(converters.ArgumentTypeError):
            convert(text)


def test_a_number_is_seconds_except_for_an_age():
    assert converters.duration("90") == 90
    with pytest.raises(converters.ArgumentTypeError, match="'90' is not a duration"):
        converters.age("90")


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
        ("enqueue shop.plain --delay soon", "is not a duration: write for example 90s, 5m, 12h, 30d or 2w"),
        ("enqueue shop.plain --delay 999999w", "is longer than a thousand years"),
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
        ("list --status done", "'done' is not a status. Choose from blocked, scheduled, pending, running"),
        ("list --limit 0", "integer from 1 to 100,000"),
        ("list --limit 100001", "integer from 1 to 100,000"),
        ("list --blocked-by 5", "'5' is not an id"),
        ("list --created-after yesterday", "'yesterday' is not a time: write for example 2026-11-22"),
        ("list --format xml", "invalid choice"),
        ("list --database nowhere", "DATABASES has no alias 'nowhere'. Known: default"),
        ("show 5", "'5' is not an id"),
        (f"show {ID}", f"No chain or job {ID}: it was never committed, or it was deleted."),
        ("types shop.mails", "No job type matches shop.mails. Did you mean 'shop.mail'? Run 'types' to list all."),
        ("types shopp.*", "No job type matches shopp.*. Run 'types' to list all."),
        ("enqueue shop.chrage", "No job type 'shop.chrage'. Did you mean 'shop.charge'? Is its app in INSTALLED_APPS"),
        ("stat", "There is no subcommand 'stat'. Did you mean 'status'? See manage.py jobchains --help."),
        ("nonsense", "There is no subcommand 'nonsense'. See manage.py jobchains --help."),
        ("pause", "required: QUEUE"),
        ("pause ''", "is not a name: pass 1 to 100 printable characters"),
        (f"resume {'x' * 101}", "is not a name"),
        ("limit mail", "required: N|none"),
        ("limit mail 0", "'0' must be an integer from 1"),
        ("limit mail many", "'many' must be an integer from 1, or none for no limit"),
        ("health --max-age soon", "'soon' is not a duration: write for example 90s, 5m, 12h, 30d or 2w"),
        ("health --max-age=-1", "'-1' is not a duration"),
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


def test_without_a_subcommand_the_help_is_printed(run):
    done = run()
    assert (done.code, done.out.startswith("usage: manage.py jobchains [-h]")) == (0, True)
    assert "lists job types and record workers" in done.out


def test_help_names_the_same_kind_of_value_alike():
    """A value is a QUEUE, a TYPE or a DURATION in every option."""
    parsers = [
        BaseCommand.create_parser(command, "manage.py", "x")
        for command in (jobchains.Command(), run_jobworker.Command())
    ]
    subcommands = parsers[0]._subparsers._group_actions[0]._name_parser_map
    metavars = {"--queue": "QUEUE", "--delay": "DURATION", "--older-than": "DURATION", "--timeout": "DURATION"}
    for parser in [*subcommands.values(), *parsers]:
        for action in parser._actions:
            for option in action.option_strings:
                assert action.metavar == metavars.get(option, action.metavar), option
            assert action.metavar or action.nargs == 0 or action.choices or action.help == SUPPRESS or parser in parsers
    assert "of chains; - reads them" in subcommands["delete"].format_help()
    assert "/metrics is empty until the processes have reported" in " ".join(parsers[1].format_help().split())


@pytest.mark.django_db
def test_errors_do_not_contain_values_of_the_input(run, registry):
    registry.declared["shop.refund"] = JobType("shop.refund", input=Refund)
    done = run("enqueue", "shop.refund", "--input", '{"order_id": "canary-77", "reason": "late"}')
    assert "order_id: Input should be a valid integer" in done.error
    assert "canary-77" not in done.error
