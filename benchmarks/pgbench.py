"""Floors measured with pgbench: the same statements from a client that costs almost nothing."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.bare import BATCH
from benchmarks.cells import Figures
from benchmarks.database import completed, conninfo
from benchmarks.statements import FINISH_MANY, FINISH_ONE, JOB, LOCK, Claim

CLIENTS = 10
IN_ONE_CLAIM = 10


def is_here() -> bool:
    return shutil.which("pgbench") is not None


def drain_in_batches(type_name: str, jobs: int) -> Figures:
    script = [_claim(type_name, BATCH), _with(FINISH_MANY, "'1'", ":ids::uuid[]")]
    return _run(script, type_name, transactions=jobs // BATCH, clients=1)


def drain_with_effects(type_name: str, jobs: int) -> Figures:
    """Run ten clients that claim ten jobs, then write the effect and the end of each job in a transaction."""
    script = [_claim(type_name, IN_ONE_CLAIM)]
    for number in range(1, IN_ONE_CLAIM + 1):
        job_id = f"(:ids::uuid[])[{number}]"
        effect = f"INSERT INTO project_effect (job_id, value) SELECT id, 1 FROM {JOB} WHERE id = {job_id}"
        script += ["BEGIN", _with(LOCK, job_id), effect, _with(FINISH_ONE, "'1'", job_id), "COMMIT"]
    return _run(script, type_name, transactions=jobs // IN_ONE_CLAIM // CLIENTS, clients=CLIENTS)


def _claim(type_name: str, limit: int) -> str:
    claim = Claim(type_name, limit).literal
    return f"WITH claimed AS ({claim}) SELECT COALESCE(array_agg(id), '{{}}')::text AS ids FROM claimed \\gset"


def _with(sql: str, *values: str) -> str:
    for value in values:
        sql = sql.replace("%s", value, 1)
    return sql


def _run(script: list[str], type_name: str, *, transactions: int, clients: int) -> Figures:
    """Return the completed jobs in the table divided by pgbench's own time without connecting."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "script.sql")
        file.write_text("\n".join(line if line.endswith("\\gset") else f"{line};" for line in script) + "\n")
        command = ["pgbench", "--no-vacuum", "--protocol", "prepared", "--file", str(file), "--client", str(clients)]
        command += ["--jobs", str(min(clients, 2)), "--transactions", str(transactions), conninfo()]
        output = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"^tps = ([\d.]+)", output.stdout, re.MULTILINE)
    if output.returncode or not found:
        raise RuntimeError(f"pgbench failed: {output.stderr[-2000:]}")
    return {"jobs/s": completed(type_name) * float(found[1]) / (transactions * clients)}
