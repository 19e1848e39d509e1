"""What a worker reports about its attempts in the log and on its terminal."""

import logging
from dataclasses import fields
from pathlib import Path
from traceback import extract_tb, format_exception
from typing import Any
from uuid import uuid4

import pytest
from django.core.management.color import no_style

import django_jobchains
from django_jobchains.telemetry import Event, events, report
from django_jobchains.telemetry.events import AttemptAbandoned, AttemptEnded, ThreadFailed
from django_jobchains.telemetry.terminal import TerminalSink
from django_jobchains.text.errors import log_error, log_text
from django_jobchains.worker.maintenance import PeriodicTask, PeriodicTasks

SECRET = "c4n4ry"


def ended(error: str) -> AttemptEnded:
    return AttemptEnded("worker", uuid4(), uuid4(), "shop.charge", 1, "failed", 0.1, error, None)


def shown(event: Event) -> str:
    """Return what the terminal shows for this event."""
    written: list[str] = []
    TerminalSink(written.append, no_style(), verbosity=2, worker="worker")(event)
    return "\n".join(written)


def with_texts(kind: type[Event], text: str) -> Event:
    """Return an event of this kind with this text in every text field, except the id of the worker."""
    values: dict[str, Any] = {field.name: _value(str(field.type), text) for field in fields(kind)}
    return kind(**{**values, "worker": "worker"})


def _value(annotation: str, text: str) -> Any:
    if annotation.startswith("tuple"):
        return ()
    texts = dict.fromkeys(["<class 'str'>", "str | None", "uuid.UUID | str"], text)
    return {**texts, "<class 'uuid.UUID'>": uuid4(), "<class 'bool'>": False}.get(annotation, 1)


KINDS = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]


def test_secrets_in_errors_are_masked_in_the_log(caplog):
    report(ended(f"ConnectionError: no answer, token={SECRET}"))
    (record,) = caplog.records
    assert "no answer" in record.getMessage()
    assert SECRET not in record.getMessage()
    assert SECRET not in str(vars(record)["jobchains"])


def test_secrets_are_masked_on_the_terminal_as_in_the_log():
    assert shown(ThreadFailed("worker", "jobchains-claim-loop", f"no answer, token={SECRET}", 1, False)).endswith(
        "no answer, token=********"
    )
    assert "no answer" in shown(ended(f"ConnectionError: no answer, token={SECRET}"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_event_shows_a_secret_on_the_terminal(kind):
    if kind is not Event:
        assert SECRET not in shown(with_texts(kind, f"no answer, token='{SECRET}'"))


@pytest.mark.parametrize(
    "error",
    [
        f"could not connect to redis://jobs:{'x' * 300}{SECRET}@localhost",  # the line ends inside the password
        f"login(token='a\n{SECRET}')",
        f"ValueError: private_key='{'x' * 150}{SECRET * 50}'",
    ],
)
def test_an_error_is_redacted_before_it_is_shortened_to_a_line(error):
    assert SECRET not in shown(ended(error))
    assert "*" in shown(ended(error))


@pytest.mark.parametrize("forged", ["a\nERROR forged", "a\r\x1b[2Jb", "a\u2028b", "a\x85b", "a\u202eb"])
def test_control_characters_cannot_forge_a_line_of_the_log(forged, caplog):
    report(ended(forged))
    report(AttemptAbandoned("worker", uuid4(), forged))
    assert len(caplog.records) == 2
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_an_error_in_a_log_message_is_one_line_without_secrets():
    assert log_text(OSError(f"no answer\nfrom redis://:{SECRET}@localhost")) == (
        "OSError: no answer from redis://:********@localhost"
    )


def test_a_traceback_in_a_log_record_has_no_secrets(caplog):
    try:
        raise OSError(f"no answer\nERROR from redis://:{SECRET}@localhost")
    except OSError as error:
        log_error(logging.getLogger("django_jobchains"), error, "Job %s: %s", 5)
    (record,) = caplog.records
    assert (record.levelname, record.msg) == ("ERROR", "Job %s: %s")
    assert SECRET not in "".join(format_exception(*record.exc_info))
    assert (record.exc_info[0].__name__, record.exc_info[0].__module__) == ("OSError", "builtins")
    assert extract_tb(record.exc_info[2])[-1].filename == __file__
    assert record.getMessage() == "Job 5: OSError: no answer ERROR from redis://:********@localhost"
    assert record.pathname == __file__
    _, *traceback = logging.Formatter().format(record).splitlines()
    assert traceback[0] == "  Traceback (most recent call last):"
    assert traceback[-1] == "  ERROR from redis://:********@localhost"


def test_an_error_without_secrets_is_logged_unchanged(caplog):
    error = OSError("no answer")
    error.__cause__ = KeyError("host")
    log_error(logging.getLogger("django_jobchains"), error, "Job %s: %s", 5)
    assert caplog.records[0].exc_info == (OSError, error, None)


def test_a_cause_with_a_secret_is_not_logged(caplog):
    try:
        raise OSError("no answer") from ValueError(f"password={SECRET}")
    except OSError as error:
        log_error(logging.getLogger("django_jobchains"), error, "Job %s: %s", 5)
    assert SECRET not in "".join(format_exception(*caplog.records[0].exc_info))


def test_no_module_sets_exc_info_itself():
    """Formatters and error trackers use ``exc_info`` with its secrets, so only ``add_traceback`` may set it."""
    package = Path(str(django_jobchains.__file__)).parent
    sources = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert sources
    assert [path.name for path, text in sources.items() if "logger.exception(" in text or "exc_info=" in text] == []


def test_an_error_of_maintenance_is_one_line_without_secrets(caplog, db):
    class Failing(PeriodicTask):
        seconds = 0.0

        def step(self) -> bool:
            raise OSError(f"no answer\npassword={SECRET}")

    parts: Any = Failing(), Failing()
    with pytest.raises(OSError, match="no answer"):
        PeriodicTasks(*parts).step()
    assert caplog.messages == [
        "Another periodic task failed as well, and is retried: OSError: no answer password=********"
    ]
