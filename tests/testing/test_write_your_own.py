"""The code in the guide "write your own" fulfils the contracts, and the guide names every method to implement."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from django.db import connection

from django_jobchains.notifications import EVERY, job_scheduled
from django_jobchains.store import Store, get_store
from django_jobchains.store.database import Database
from django_jobchains.store.jobs import Jobs
from django_jobchains.store.limits import Limits
from django_jobchains.testing.contracts import ReceivedHints
from tests.support.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "write-your-own.md"
TEXT = PAGE.read_text(encoding="utf-8")


def code(name):
    """Return the code block that begins with this file name."""
    (block,) = re.findall(rf"^```python\n# {re.escape(name)}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return str(block)


def module(name):
    """Import the code block with this name."""
    found = sys.modules[name] = ModuleType(name)
    exec(compile(code(f"{name}.py"), f"{PAGE.name}: {name}.py", "exec"), found.__dict__)
    return found


hints_in_a_file = module("hints_in_a_file")
stores = module("stores")
TestFileNotifier = module("test_hints_in_a_file").TestFileNotifier
TestFileNotifier.__module__ = __name__


def test_hints_reach_another_process(tmp_path):
    (tmp_path / "hints_in_a_file.py").write_text(code("hints_in_a_file.py"), encoding="utf-8")
    received = ReceivedHints()
    listener = hints_in_a_file.FileNotifier("default", tmp_path / "hints").listen(received)
    try:
        until(lambda: listener.is_alive)
        program = (
            "from django_jobchains.notifications import job_scheduled\n"
            "from hints_in_a_file import FileNotifier\n"
            "FileNotifier('default', 'hints').publish([job_scheduled('shop.ship', 3)])\n"
        )
        subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path, check=True)
        (hint,) = until(received.of_a_type)
        assert (hint.subject, hint.count) == ("shop.ship", 3)
    finally:
        listener.close()


def test_a_large_file_is_replaced_and_no_hint_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(hints_in_a_file, "MAX_BYTES", 200)
    notifier, received = hints_in_a_file.FileNotifier("default", tmp_path / "hints"), ReceivedHints()
    listener = notifier.listen(received)
    try:
        until(lambda: listener.is_alive)
        notifier.publish([job_scheduled("x" * 200)])
        received.until(lambda: received.hints.count(job_scheduled(EVERY)) == 2)
        notifier.publish([job_scheduled("shop.ship")])
        until(lambda: job_scheduled("shop.ship") in received.hints)
    finally:
        listener.close()


def test_invalid_lines_of_the_file_are_ignored(tmp_path):
    path = tmp_path / "hints"
    notifier, received = hints_in_a_file.FileNotifier("default", path), ReceivedHints()
    listener = notifier.listen(received)
    try:
        until(lambda: listener.is_alive)
        with path.open("ab") as file:
            file.write(
                b"\xff\x00\njob_scheduled 3\nno_kind 1:a:shop.ship\n\njob_scheduled x:y:z\n" + b"y" * 5_000 + b"\n"
            )
        notifier.publish([job_scheduled("shop.ship")])
        until(lambda: received.of_a_type() == [job_scheduled("shop.ship")], what=lambda: received.hints)
    finally:
        listener.close()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="needs SQLite")
@pytest.mark.django_db
def test_the_store_of_the_guide_can_be_configured(settings, caplog):
    settings.JOBCHAINS = {"STORE": "stores.MeasuredStore"}
    with caplog.at_level("INFO"):
        assert get_store().jobs.claim("worker", 1, {"shop.ship": 60.0}) == []
    assert "0 jobs claimed in" in caplog.text


def test_the_guide_names_every_method_of_a_store():
    abstract = Database.__abstractmethods__ | Jobs.__abstractmethods__ | Limits.__abstractmethods__
    classes = {name for name in Store.__annotations__ if name.endswith("_class")}
    groups = {name for name in vars(get_store()) if name not in ("using", "db")}
    assert (abstract | classes) - set(re.findall(r"`(\w+)`", TEXT)) == set()
    assert groups - set(re.findall(r"`store\.(\w+)`", TEXT)) == set()
