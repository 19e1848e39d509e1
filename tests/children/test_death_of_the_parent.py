"""A process that uses a pool always ends, and however it ends, none of its child processes survives."""

import os
import signal
import subprocess
import sys

import pytest

from django_jobchains.testing.contracts.concurrency import until
from tests.children.conftest import is_running, kill, pids_in

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys, threading, time
from pathlib import Path
from django_jobchains.children import child_process
from django_jobchains.pools import PoolClosed, ReusablePool, ChildSession

FUNCTIONS = "tests.children.functions"
marks = Path(sys.argv[1])
pool = ReusablePool(2)

def acquire():
    try:
        pool.acquire()
    except PoolClosed:
        pass
"""

#: What the process is doing when it exits. The threads are not daemons, so the interpreter waits for them.
STATES = {
    "nothing was started": "",
    "a pool was closed": "with pool: pool.release(pool.acquire())",
    "a child is idle": "pool.release(pool.acquire())",
    "a child was not released": "child = pool.acquire()",
    "a child starts": "threading.Thread(target=acquire, daemon=True).start()",
    "a set-up hangs": """
pool = ReusablePool(setup=FUNCTIONS + ":hang_in_set_up")
threading.Thread(target=acquire).start()
time.sleep(random() / 2)
""",
    "a call hangs": """
def call(function):
    try:
        with ChildSession(pool) as child:
            child.run(FUNCTIONS + ":" + function, str(marks))
    except PoolClosed:
        pass
threading.Thread(target=call, args=["hang_without_sigterm"]).start()
threading.Thread(target=call, args=["hang_in_c"]).start()
time.sleep(random())
""",
    "a call hangs in an executor": """
from concurrent.futures import ThreadPoolExecutor
child = pool.acquire()
ThreadPoolExecutor(1).submit(child.run, FUNCTIONS + ":hang_without_sigterm")
time.sleep(random() / 2)
""",
    "a thread waits for a child": """
children = [pool.acquire(), pool.acquire()]
threading.Thread(target=acquire).start()
""",
    "a child will expire": "pool = ReusablePool(idle_ttl=60); pool.release(pool.acquire())",
    "a thread replaces a process": """
pool = ReusablePool(setup="os:abort")
pool.acquire().start(FUNCTIONS + ":hang")
""",
}


def program(tmp_path, body):
    code = f"{PROGRAM}\nfrom random import random\n{body}\n"
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path / "marks")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


#: A state that depends on chance is tried three times.
TURNS = [(state, turn) for state, body in STATES.items() for turn in range(3 if "random()" in body else 1)]


@pytest.mark.parametrize(("state", "turn"), TURNS)
def test_the_interpreter_exits_in_any_state_without_a_word(tmp_path, state, turn):
    process = program(tmp_path, STATES[state])
    output, errors = process.communicate(timeout=60)
    errors = "\n".join(line for line in errors.splitlines() if "run without isolation" not in line)
    assert (process.returncode, output, errors.strip()) == (0, "", "")
    until(lambda: not survivors(tmp_path))


@pytest.mark.parametrize("has_fork", [False, True])
def test_a_killed_process_takes_children_and_grandchildren_along(tmp_path, has_fork):
    """Also if a fork of the process lives on."""
    body = f"""
with ChildSession(pool) as child:
    call = child.start(FUNCTIONS + ":hang_in_c", str(marks))
    fork = os.fork() if {has_fork} else os.getpid()
    if not fork:
        time.sleep(600)
    print(fork, child_process.get_preload().pid, flush=True)
    call.wait()
"""
    process = program(tmp_path, body)
    fork, preload = map(int, process.stdout.readline().split())
    try:
        pids = [preload, *until(lambda: pids_in(tmp_path / "marks"))]
        assert all(map(is_running, pids))
        process.kill()
        until(lambda: not any(map(is_running, pids)))
        assert not has_fork or is_running(fork)
    finally:
        kill(fork)
        process.communicate()


def test_a_killed_preload_process_takes_the_children_along(tmp_path):
    body = """
with ChildSession(pool) as child:
    call = child.start(FUNCTIONS + ":hang_in_c", str(marks))
    print(child_process.get_preload().pid, flush=True)
    try:
        call.wait()
    except Exception as error:
        print(type(error).__name__, flush=True)
"""
    process = program(tmp_path, body)
    assert process.stdout is not None
    preload = int(process.stdout.readline())
    marks = tmp_path / "marks"
    pids = until(lambda: pids_in(marks))
    process.send_signal(signal.SIGSTOP)  # so that it cannot end the child itself
    os.kill(preload, signal.SIGKILL)
    until(lambda: not is_running(pids[0]))
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=60)
    assert output == "ChildCrashed\n"
    until(lambda: not any(map(is_running, pids)))


def test_a_fork_of_the_process_has_pools_of_its_own(tmp_path):
    body = """
pool = ReusablePool(1)

def pids():
    with ChildSession(pool) as child:
        return child.run(FUNCTIONS + ":pid"), child_process.get_preload().pid

before = pids()
fork = os.fork()
if not fork:
    print(set(before).isdisjoint(pids()), flush=True)
    pool.terminate()
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), pids() == before, flush=True)
"""
    process = program(tmp_path, body)
    output, errors = process.communicate(timeout=60)
    assert (output.split(), errors) == (["True", "0", "True"], "")


def survivors(tmp_path):
    """Return the processes of the test that still run."""
    return [pid for pid in pids_in(tmp_path / "marks") if is_running(pid)]


@pytest.fixture(autouse=True)
def _no_survivors(tmp_path):
    yield
    for pid in survivors(tmp_path):
        kill(pid)
