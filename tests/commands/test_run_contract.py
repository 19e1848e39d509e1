"""``run_contract`` runs a contract in a project that does not configure pytest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

ROOT = Path(__file__).parents[2]

CODECS = """
from django_jobchains.payloads.codecs import PayloadCodec
from django_jobchains.testing.contracts import PayloadCodecContract


class Plain(PayloadCodec):
    def encode(self, text):
        return f"plain:{text}"

    def decode(self, text):
        head, colon, rest = text.partition(":")
        if not (head == "plain" and colon):
            raise ValueError("not encoded")
        return rest


class Compressing(PayloadCodecContract):
    hides = False

    def make(self):
        return Plain()


class Hiding(Compressing):
    hides = True
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("contract", "code", "output"),
    [
        # Skipped tests are reported with their reason, and failed ones with the values.
        ("Compressing", 0, ["Compressing::test_threads_share_a_codec PASSED", "hides nothing"]),
        ("Hiding", 1, ["FAILED codecs_of_mine.py::Hiding::test_an_encoded_text", "assert 'canary4711' not in 'plain:"]),
        ("Lost", 4, ["not found", "Lost"]),
    ],
)
def test_each_test_is_reported(tmp_path, contract, code, output):
    (tmp_path / "codecs_of_mine.py").write_text(CODECS, encoding="utf-8")
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    command = [sys.executable, "-m", "django", "run_contract", f"codecs_of_mine:{contract}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("has not passed" in done.stderr) == bool(code)
    assert [text for text in output if text not in done.stdout + done.stderr] == []


def test_a_module_without_a_class_is_an_error():
    with pytest.raises(CommandError, match="such as"):
        call_command("run_contract", "codecs_of_mine")
