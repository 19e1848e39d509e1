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


def run_contract(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "codecs_of_mine.py").write_text(CODECS, encoding="utf-8")
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": f"{ROOT}:{folder}"}
    command = [sys.executable, "-m", "django", "run_contract", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_each_test_is_reported_and_skipped_ones_with_their_reason(tmp_path):
    done = run_contract(tmp_path, "codecs_of_mine:Compressing")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Compressing::test_threads_share_a_codec PASSED" in done.stdout
    assert "hides nothing" in done.stdout


@pytest.mark.slow
def test_a_failed_test_is_reported_with_its_error(tmp_path):
    done = run_contract(tmp_path, "codecs_of_mine:Hiding")
    assert (done.returncode, "passed" in done.stderr) == (1, True), done.stdout + done.stderr
    assert "FAILED codecs_of_mine.py::Hiding::test_an_encoded_text_is_unreadable" in done.stdout
    assert "assert 'canary4711' not in 'plain:" in done.stdout, "the values are not shown"


@pytest.mark.slow
def test_a_contract_that_does_not_exist_is_an_error(tmp_path):
    done = run_contract(tmp_path, "codecs_of_mine:Lost")
    assert done.returncode
    assert "Lost" in done.stderr


def test_a_module_without_a_class_is_an_error():
    with pytest.raises(CommandError, match="such as"):
        call_command("run_contract", "codecs_of_mine")
