"""The command of the guide runs a contract in a project that does not configure pytest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


class TestCompressing(PayloadCodecContract):
    hides = False

    def make(self):
        return Plain()


class TestHiding(TestCompressing):
    hides = True
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("contract", "code", "output"),
    [
        # Skipped tests are reported with their reason, and failed ones with the values.
        ("TestCompressing", 0, ["TestCompressing::test_threads_share_a_codec PASSED", "hides nothing"]),
        (
            "TestHiding",
            1,
            ["FAILED codecs_of_mine.py::TestHiding::test_an_encoded_text", "assert 'canary4711' not in 'plain:"],
        ),
        ("TestLost", 4, ["not found", "TestLost"]),
    ],
)
def test_each_test_is_reported(tmp_path, contract, code, output):
    (tmp_path / "codecs_of_mine.py").write_text(CODECS, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--ds=tests.settings",
        "--verbose",
        "-ra",
        f"codecs_of_mine.py::{contract}",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert [text for text in output if text not in done.stdout + done.stderr] == []
