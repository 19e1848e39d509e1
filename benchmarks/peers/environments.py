"""The environments of the peers, ``.venv-peers/<package>``, and the versions of their packages."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from benchmarks.peers.catalogue import Peer

HOME = Path(__file__).resolve().parents[2] / ".venv-peers"
NODE_PROGRAM = Path(__file__).with_name("programs") / "node" / "main.cjs"
NEWEST = ((3, 13), (3, 12))


def path(peer: Peer) -> Path:
    return HOME / peer.environment


def python(peer: Peer) -> str:
    return str(path(peer) / "bin" / "python")


def program(peer: Peer) -> list[str]:
    """Return the command that runs the peer's program in its environment."""
    if peer.is_node:
        return [str(_modules(peer) / ".bin" / "node"), str(NODE_PROGRAM), peer.program]
    return [python(peer), "-m", "benchmarks.peers.programs", peer.program]


def variables(peer: Peer) -> dict[str, str]:
    """Return the environment variables of the peer's processes."""
    return {**peer.options, **({"NODE_PATH": str(_modules(peer))} if peer.is_node else {})}


def is_ready(peer: Peer) -> bool:
    """Return whether everything is installed as the catalogue currently requires."""
    marker = _marker(peer)
    return marker.exists() and marker.read_text() == _wanted(peer)


def prepare(peer: Peer, interpreter: str) -> None:
    shutil.rmtree(path(peer), ignore_errors=True)
    if peer.is_node:
        _run(interpreter, "install", "--prefix", str(path(peer)), "--no-audit", "--no-fund", *peer.packages)
    else:
        _run(interpreter, "-m", "venv", str(path(peer)))
        _run(python(peer), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *peer.packages)
    _marker(peer).write_text(_wanted(peer))


def version(peer: Peer) -> str:
    """Return the installed versions, such as ``procrastinate 3.10.0, psycopg 3.3.9, Python 3.11``."""
    if peer.is_node:
        manifests = {name: _modules(peer) / name / "package.json" for name in peer.distributions}
        return ", ".join(f"{name} {json.loads(path.read_text())['version']}" for name, path in manifests.items())
    (packages,) = path(peer).glob("lib/python*/site-packages")
    found = {
        _normal(distribution.name): distribution.version
        for distribution in metadata.distributions(path=[str(packages)])
    }
    versions = [f"{name} {found[_normal(name)]}" for name in peer.distributions]
    return ", ".join([*versions, packages.parent.name.replace("python", "Python ")])


def interpreter(peer: Peer) -> str | None:
    """Return this Python if it is new enough for the peer, or another one of this machine; for Node.js, npm."""
    if peer.is_node:
        return shutil.which("npm")
    return next((found for found in (sys.executable, *_others()) if _is_at_least(found, peer.python)), None)


def _others() -> Iterator[str]:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for major, minor in NEWEST:
        if found := shutil.which(f"python{major}.{minor}"):
            yield found
        yield from (str(found) for found in sorted(pyenv.glob(f"versions/{major}.{minor}.*/bin/python")))


def _is_at_least(interpreter: str, wanted: tuple[int, int]) -> bool:
    """Return whether the interpreter is new enough. It has to run, because it may be a pyenv shim of a disabled one."""
    question = f"import sys; sys.exit(sys.version_info < {wanted})"
    return subprocess.run([interpreter, "-c", question], capture_output=True, check=False).returncode == 0


def _normal(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


def _modules(peer: Peer) -> Path:
    return path(peer) / "node_modules"


def _marker(peer: Peer) -> Path:
    return path(peer) / ".ready"


def _wanted(peer: Peer) -> str:
    return "\n".join(peer.packages)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
