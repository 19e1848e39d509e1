"""Run one command of a program. The last line of the standard output contains the figures as JSON."""

import json
import os
import sys
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

from benchmarks.peers.programs.clients import COMMANDS, Client


class Program(Protocol):
    def prepare(self) -> None: ...

    def worker(self) -> None: ...

    def client(self) -> AbstractContextManager[Client]: ...


def main(name: str, command: str, *arguments: str) -> None:
    program = _program(name)
    if command == "prepare":
        program.prepare()
    elif command == "worker":
        program.worker()
    else:
        with program.client() as client:
            print(json.dumps(COMMANDS[command](client, *arguments)))


def _program(name: str) -> Program:
    if find_spec("django"):
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.peers.programs.django_settings"
        os.environ["BENCH_PEER_PROGRAM"] = name
        import django

        django.setup()
    program: Program = import_module(f"benchmarks.peers.programs.{name}")
    return program


main(*sys.argv[1:])
