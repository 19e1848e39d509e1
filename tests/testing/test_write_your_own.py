"""What the guide "write your own" shows passes the contracts, and names all that is asked for."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.db import connection

from django_jobchains.notifications import job_scheduled
from django_jobchains.store import Store, get_store
from django_jobchains.testing.contracts import Heard
from tests.worker.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "write-your-own.md"
TEXT = PAGE.read_text(encoding="utf-8")


def code(name: str) -> str:
    """The block that names this file."""
    (block,) = re.findall(rf"^```python\n# {re.escape(name)}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return str(block)


def module(name: str) -> Any:
    """The block, imported under its name."""
    found = sys.modules[name] = ModuleType(name)
    exec(compile(code(f"{name}.py"), f"{PAGE.name}: {name}.py", "exec"), found.__dict__)
    return found


hints_in_a_file: Any = module("hints_in_a_file")
stores: Any = module("stores")
TestFileNotifier: Any = module("test_hints_in_a_file").TestFileNotifier
TestFileNotifier.__module__ = __name__


def test_hints_reach_another_process(tmp_path: Path) -> None:
    (tmp_path / "hints_in_a_file.py").write_text(code("hints_in_a_file.py"), encoding="utf-8")
    heard = Heard()
    listener = hints_in_a_file.FileNotifier("default", tmp_path / "hints").listen(heard)
    try:
        until(lambda: listener.is_alive)
        program = (
            "from django_jobchains.notifications import job_scheduled\n"
            "from hints_in_a_file import FileNotifier\n"
            "FileNotifier('default', 'hints').publish([job_scheduled('shop.ship', 3)])\n"
        )
        subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path, check=True)
        (hint,) = until(heard.of_a_type)
        assert (hint.subject, hint.count) == ("shop.ship", 3)
    finally:
        listener.close()


def test_a_file_that_grew_large_is_replaced_and_nothing_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints_in_a_file, "MOST_BYTES", 200)
    notifier, heard = hints_in_a_file.FileNotifier("default", tmp_path / "hints"), Heard()
    listener = notifier.listen(heard)
    try:
        until(lambda: listener.is_alive)
        notifier.publish([job_scheduled("x" * 200)])
        until(lambda: len(heard.looks()) == 6, what=lambda: heard.hints)
        notifier.publish([job_scheduled("shop.ship")])
        until(lambda: job_scheduled("shop.ship") in heard.hints)
    finally:
        listener.close()


def test_junk_in_the_file_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "hints"
    notifier, heard = hints_in_a_file.FileNotifier("default", path), Heard()
    listener = notifier.listen(heard)
    try:
        until(lambda: listener.is_alive)
        with path.open("ab") as file:
            file.write(
                b"\xff\x00\njob_scheduled 3\nno_kind 1:a:shop.ship\n\njob_scheduled x:y:z\n" + b"y" * 5_000 + b"\n"
            )
        notifier.publish([job_scheduled("shop.ship")])
        until(lambda: heard.of_a_type() == [job_scheduled("shop.ship")], what=lambda: heard.hints)
    finally:
        listener.close()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="needs SQLite")
@pytest.mark.django_db
def test_the_store_of_the_page_can_be_named(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.JOBCHAINS = {"STORE": "stores.MeasuredStore"}
    with caplog.at_level("INFO"):
        assert get_store().claim("worker", 1, {"shop.ship": 60.0}) == []
    assert "0 jobs claimed in" in caplog.text


def test_the_page_names_all_that_a_store_is_asked_for() -> None:
    asked = set(Store.__abstractmethods__)
    assert asked - set(re.findall(r"`(\w+)`", TEXT)) == set()
