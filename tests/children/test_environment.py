"""What a child process inherits, and what the operating system enforces on it."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from django_jobchains.children import preload
from django_jobchains.pools import (
    ChildCrashed,
    ChildSession,
    RemoteError,
    ReusablePool,
    TransientPool,
)
from tests.children.conftest import FUNCTIONS

Run = Callable[..., Any]


def in_child(pool: Any, name: str, payload: Any = None) -> Any:
    with pool, ChildSession(pool) as child:
        return child.run(f"{FUNCTIONS}:{name}", payload)


def test_a_child_inherits_the_standard_streams_and_its_own_descriptors_only() -> None:
    with tempfile.TemporaryFile() as file:
        os.set_inheritable(file.fileno(), True)
        found = in_child(TransientPool(), "descriptors")
    assert found["0"] == "/dev/null"
    kinds = sorted(
        found.pop(number) and target.split(":")[0] for number, target in found.copy().items() if number > "2"
    )
    assert kinds == ["pipe", "pipe", "socket"]
    assert found.keys() == {"0", "1", "2"}
    assert found["2"].startswith("pipe:")


def test_a_child_has_its_own_session_and_is_a_child_of_the_preload_process(run: Run) -> None:
    pid, group, session, parent = run("session")
    assert pid == group == session
    assert parent == preload.get_preload().pid != os.getpid()


def test_a_child_is_killed_first_when_memory_runs_out(run: Run) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert run("oom_score") == min(own + 300, 1000)


def test_a_child_runs_its_set_up_once() -> None:
    with ReusablePool(setup=f"{FUNCTIONS}:set_up") as pool, ChildSession(pool) as child:
        assert child.run(f"{FUNCTIONS}:is_set_up") is True


def test_a_child_without_set_up_has_none(run: Run) -> None:
    assert run("is_set_up") is False


@pytest.fixture(scope="class")
def preload_with_secret() -> Iterator[None]:
    """Start a preload process with a secret in its environment. Later tests get another preload process."""
    preload.close_preload()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAYMENT_TOKEN", "opensesame")
        patch.setenv("LC_TIME", "C")
        preload.get_preload()
    yield
    preload.close_preload()


@pytest.mark.usefixtures("preload_with_secret")
class TestMinimalEnvironment:
    def test_functions_see_every_variable_without_it(self) -> None:
        assert in_child(TransientPool(), "environment")["PAYMENT_TOKEN"] == "opensesame"

    def test_functions_and_programs_see_only_what_programs_need(self) -> None:
        with ChildSession(TransientPool(minimal_env=True, strict=True)) as child:
            environment = child.run(f"{FUNCTIONS}:environment")
            assert environment["PATH"] == os.environ["PATH"]
            assert environment["LC_TIME"] == "C"
            assert environment["DJANGO_SETTINGS_MODULE"] == "tests.settings"
            assert "PAYMENT_TOKEN" not in environment
            for name in ("initial_environment", "environment_of_program"):
                assert "opensesame" not in child.run(f"{FUNCTIONS}:{name}")

    def test_the_settings_were_loaded_with_every_variable(self) -> None:
        names = in_child(TransientPool(minimal_env=True), "database_names")
        assert names == [str(connection.settings_dict["NAME"])]


class TestLimits:
    def test_memory_above_the_limit_is_an_ordinary_error(self) -> None:
        with ReusablePool(memory_limit="1G", strict=True) as pool, ChildSession(pool) as child:
            with pytest.raises(RemoteError) as caught:
                child.run(f"{FUNCTIONS}:allocate", 2 * 1024**3)
            assert caught.value.type_name == "MemoryError"
            assert child.run(f"{FUNCTIONS}:allocate", 1024) == 1024

    @pytest.mark.slow
    def test_a_call_that_uses_too_much_cpu_time_is_killed(self) -> None:
        with pytest.raises(ChildCrashed, match="was killed by SIGXCPU"):
            in_child(ReusablePool(cpu_seconds=1), "burn", 30)

    @pytest.mark.slow
    def test_the_cpu_time_of_earlier_calls_does_not_count(self) -> None:
        with ReusablePool(cpu_seconds=1) as pool, ChildSession(pool) as child:
            for _ in range(3):
                assert child.run(f"{FUNCTIONS}:burn", 0.5) == "burnt"


def test_a_child_uses_the_database_names_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "NAME", "one_of_a_test_runner")
    assert in_child(TransientPool(), "database_names") == ["one_of_a_test_runner"]


@pytest.mark.django_db(transaction=True)
class TestDatabase:
    def test_a_child_can_query(self, run: Run) -> None:
        assert run("users") == 0

    def test_a_transaction_that_a_function_leaves_open_is_rolled_back(self, shared_pool: ReusablePool) -> None:
        with ChildSession(shared_pool) as child:
            child.run(f"{FUNCTIONS}:leave_transaction_open", "ada")
            User.objects.create(username="ada")  # it would wait for the transaction
            assert child.run(f"{FUNCTIONS}:users") == 1

    def test_the_connection_of_the_caller_survives_its_children(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            raw = connection.connection
            for _ in range(2):
                assert in_child(TransientPool(), "users") == 0
            cursor.execute("SELECT 2")
            assert cursor.fetchone() == (2,)
        assert connection.connection is raw
