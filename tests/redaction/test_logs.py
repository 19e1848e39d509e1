"""What a worker reports about its attempts in the log and on its terminal."""

import logging
from dataclasses import fields
from pathlib import Path
from traceback import extract_tb, format_exception
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
KINDS = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]


def ended(error):
    return AttemptEnded("worker", uuid4(), uuid4(), "shop.charge", 1, "failed", 0.1, error, None)


def shown(event):
    """Return what the terminal shows for this event."""
    written = []
    TerminalSink(written.append, no_style(), verbosity=2, worker="worker")(event)
    return "\n".join(written)


def with_texts(kind, text):
    """Return an event of this kind with this text in every text field, except the id of the worker."""
    texts = dict.fromkeys(["<class 'str'>", "str | None", "uuid.UUID | str"], text)
    others = {"<class 'uuid.UUID'>": uuid4(), "<class 'bool'>": False}
    values = {
        field.name: () if str(field.type).startswith("tuple") else {**texts, **others}.get(str(field.type), 1)
        for field in fields(kind)
    }
    return kind(**{**values, "worker": "worker"})


def test_secrets_in_errors_are_masked_in_the_log_and_on_the_terminal(caplog):
    event = ended(f"ConnectionError: no answer, token={SECRET}")
    report(event)
    [record] = caplog.records
    assert "no answer" in record.getMessage()
    assert SECRET not in record.getMessage()
    assert SECRET not in str(vars(record)["jobchains"])
    assert "no answer" in shown(event)
    failure = ThreadFailed("worker", "jobchains-claim-loop", f"no answer, token={SECRET}", 1, False)
    assert shown(failure).endswith("no answer, token=********")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Event])
def test_no_event_shows_a_secret_on_the_terminal(kind):
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
    assert [record.getMessage().isprintable() for record in caplog.records] == [True, True]


def test_an_error_in_a_log_message_is_one_line_without_secrets():
    text = log_text(OSError(f"no answer\nfrom redis://:{SECRET}@localhost"))
    assert text == "OSError: no answer from redis://:********@localhost"


def logged(caplog, error):
    log_error(logging.getLogger("django_jobchains"), error, "Job %s: %s", 5)
    [record] = caplog.records
    return record


def test_a_traceback_in_a_log_record_has_no_secrets(caplog):
    try:
        raise OSError(f"no answer\nERROR from redis://:{SECRET}@localhost")
    except OSError as error:
        record = logged(caplog, error)
    assert (record.levelname, record.msg) == ("ERROR", "Job %s: %s")
    assert SECRET not in "".join(format_exception(*record.exc_info))
    assert (record.exc_info[0].__name__, record.exc_info[0].__module__) == ("OSError", "builtins")
    assert extract_tb(record.exc_info[2])[-1].filename == __file__
    assert record.getMessage() == "Job 5: OSError: no answer ERROR from redis://:********@localhost"
    assert record.pathname == __file__
    _, *traceback = logging.Formatter().format(record).splitlines()
    assert traceback[0] == "  Traceback (most recent call last):"
    assert traceback[-1] == "  ERROR from redis://:********@localhost"


@pytest.mark.parametrize("cause", [KeyError("host"), ValueError(f"password={SECRET}")])
def test_a_cause_is_logged_unless_it_has_a_secret(caplog, cause):
    error = OSError("no answer")
    error.__cause__ = cause
    record = logged(caplog, error)
    if isinstance(cause, KeyError):
        assert record.exc_info == (OSError, error, None)
    assert SECRET not in "".join(format_exception(*record.exc_info))


def test_no_module_sets_exc_info_itself():
    """Formatters and error trackers use ``exc_info`` with its secrets, so only ``add_traceback`` may set it."""
    package = Path(django_jobchains.__file__).parent
    sources = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert [path.name for path, text in sources.items() if "logger.exception(" in text or "exc_info=" in text] == []


def test_an_error_of_maintenance_is_one_line_without_secrets(caplog, db):
    class Failing(PeriodicTask):
        seconds = 0.0

        def step(self):
            raise OSError(f"no answer\npassword={SECRET}")

    with pytest.raises(OSError, match="no answer"):
        PeriodicTasks(Failing(), Failing()).step()
    [message] = caplog.messages
    assert message == "Another periodic task failed as well, and is retried: OSError: no answer password=********"
