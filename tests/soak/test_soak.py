"""Run the soak test for one minute, in which each kind of fault occurs at least once."""

import json
import subprocess
import sys

import pytest

from tests.support.servers.postgresql import installed
from tests.support.servers.programs import or_skip
from tests.support.worker_processes import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_nothing_is_lost_or_doubled(tmp_path):
    with or_skip():
        installed(18)
    options = ("--minutes", "1", "--rate", "30", "--hurry", "3", "--folder", str(tmp_path / "soak"))
    with (tmp_path / "output").open("w") as output:
        code = subprocess.run([sys.executable, "-m", "tests.soak", *options], cwd=ROOT, stdout=output, stderr=output)
    assert code.returncode == 0, (tmp_path / "output").read_text()
    summary = json.loads((tmp_path / "soak" / "summary.json").read_text())
    faults = summary["faults"]
    assert faults.pop("ended by itself") == 0
    assert all(count for name, count in faults.items() if not name.startswith("fill_")), faults
    assert summary["left"] == []
    assert summary["exit_codes"] == {"web processes": [0, 0], "workers": [0] * 4}
