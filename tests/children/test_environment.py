"""What a child process inherits, and what the operating system enforces on it."""

import os
import tempfile
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection

from django_jobchains.children import child_process
from django_jobchains.pools import ChildCrashed, ChildSession, RemoteError, ReusablePool, TransientPool
from tests.children.conftest import FUNCTIONS, in_child, run


def test_a_child_inherits_the_standard_streams_and_its_own_descriptors_only():
    with tempfile.TemporaryFile() as file:
        os.set_inheritable(file.fileno(), True)
        found = in_child(TransientPool(), "descriptors")
    kinds = {number: target.split(":")[0] for number, target in found.items()}
    assert sorted(kinds.pop(number) for number in found if number > "2") == ["pipe", "pipe", "socket"]
    assert kinds.keys() == {"0", "1", "2"}
    assert (kinds["0"], kinds["2"]) == ("/dev/null", "pipe")


def test_a_child_has_its_own_session_and_is_a_child_of_the_preload_process(process):
    pid, group, session, parent = run(process, "evaluate", "[os.getpid(), os.getpgrp(), os.getsid(0), os.getppid()]")
    assert pid == group == session
    assert parent == child_process.get_preload().pid != os.getpid()


def test_a_child_is_killed_first_when_memory_runs_out(process):
    score = "/proc/self/oom_score_adj"
    own = int(Path(score).read_text())
    assert run(process, "evaluate", f"int(Path('{score}').read_text())") == min(own + 300, 1000)


def test_a_child_runs_its_set_up_once(process):
    assert in_child(TransientPool(setup=f"{FUNCTIONS}:set_up"), "evaluate", "was_set_up") is True
    assert run(process, "evaluate", "was_set_up") is False


def test_functions_see_only_the_variables_that_programs_need(monkeypatch):
    """The kernel does not show the others either. The settings were loaded with all of them."""
    child_process.close_preload()
    monkeypatch.setenv("PAYMENT_TOKEN", "opensesame")
    monkeypatch.setenv("LC_TIME", "C")
    assert in_child(TransientPool(), "evaluate", "os.environ['PAYMENT_TOKEN']") == "opensesame"
    with ChildSession(TransientPool(minimal_env=True, strict=True)) as child:
        environment = run(child, "evaluate", "dict(os.environ)")
        assert environment["PATH"] == os.environ["PATH"]
        assert environment["LC_TIME"] == "C"
        assert environment["DJANGO_SETTINGS_MODULE"] == "tests.settings"
        assert "PAYMENT_TOKEN" not in environment
        for expression in ("Path('/proc/self/environ').read_bytes()", "subprocess.check_output(['env'])"):
            assert "opensesame" not in run(child, "evaluate", f"{expression}.decode()")
        assert run(child, "connections") == [[str(connection.settings_dict["NAME"]), False]]
    child_process.close_preload()


def test_memory_above_the_limit_is_an_ordinary_error():
    with ReusablePool(memory_limit="1G", strict=True) as pool, ChildSession(pool) as child:
        with pytest.raises(RemoteError) as caught:
            run(child, "evaluate", "len(bytearray(2 * 1024**3))")
        assert caught.value.type_name == "MemoryError"
        assert run(child, "evaluate", "len(bytearray(1024))") == 1024


@pytest.mark.slow
def test_a_call_that_uses_too_much_cpu_time_is_killed_and_earlier_calls_do_not_count():
    with ReusablePool(cpu_seconds=1) as pool, ChildSession(pool) as child:
        for _ in range(3):
            assert run(child, "burn", 0.5) == "burnt"
        with pytest.raises(ChildCrashed, match="was killed by SIGXCPU"):
            run(child, "burn", 30)


def test_a_child_uses_the_database_names_of_its_caller(monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "NAME", "one_of_a_test_runner")
    assert in_child(TransientPool(), "connections") == [["one_of_a_test_runner", False]]


@pytest.mark.django_db(transaction=True)
class TestDatabase:
    def test_a_transaction_that_a_function_leaves_open_is_rolled_back(self, process):
        assert run(process, "users") == 0
        run(process, "leave_transaction_open", "ada")
        User.objects.create(username="ada")  # it would wait for the transaction
        assert run(process, "users") == 1

    def test_the_connection_of_the_caller_survives_its_children(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            raw = connection.connection
            for _ in range(2):
                assert in_child(TransientPool(), "users") == 0
            cursor.execute("SELECT 2")
            assert cursor.fetchone() == (2,)
        assert connection.connection is raw
