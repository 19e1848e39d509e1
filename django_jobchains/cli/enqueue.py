"""``enqueue``: starts a chain."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.cli import converters
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.exceptions import InvalidInput, JobchainsError
from django_jobchains.json_schemas import example_of
from django_jobchains.payloads import Codec
from django_jobchains.registry.registry import get_registry

#: The options that are passed to ``chains.enqueue``.
OPTIONS = ("queue", "priority", "delay", "run_at", "deduplicate")


class EnqueueCommand(Subcommand):
    name = "enqueue"
    help = "starts a chain, and prints its id"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("type", metavar="TYPE", help="name of a job type that can start a chain")
        parser.add_argument(
            "--input",
            type=converters.json_text,
            default="null",
            metavar="JSON",
            help="the input of the job (null); - reads it from stdin",
        )
        parser.add_argument("--queue", type=converters.queue, metavar="NAME", help="queue (the type's)")
        parser.add_argument("--priority", type=converters.priority, metavar="N", help="higher runs first (the type's)")
        start = parser.add_mutually_exclusive_group()
        start.add_argument("--delay", type=converters.duration, metavar="5m", help="how long to wait before it is due")
        start.add_argument(
            "--run-at", type=converters.time, metavar="TIME", help="when it is due, such as 2026-12-24T18:00+01:00"
        )
        parser.add_argument(
            "--deduplicate",
            type=converters.deduplication_key,
            metavar="KEY",
            help="if an unfinished chain of this type has the same key, print its id instead of starting another one",
        )

    def run(self, call: Invocation) -> None:
        text = converters.json_on_input() if call["input"] == "-" else call["input"]
        try:
            chain = _enqueue(call, text)
        except (JobchainsError, ValueError) as error:
            raise CommandError(str(error)) from error
        if call.screen.is_json:
            call.screen.json({"chain": chain.id, "type": chain.type_name, "deduplicated": chain.deduplicated})
            return
        call.screen.line(str(chain.id))
        if chain.deduplicated:
            call.screen.errors.write("A chain with this key already exists. No chain was started.")


def _enqueue(call: Invocation, text: str) -> Chain:
    job_type = get_registry().job_type(call["type"])
    options = {name: call[name] for name in OPTIONS if call[name] is not None}
    with transaction.atomic(using=call.using):
        return chains.enqueue(job_type, _input(job_type.input_codec, text), using=call.using, **options)


def _input(codec: Codec, text: str) -> Any:
    """Decode the JSON into the input that a program would pass."""
    try:
        return codec.decode(text, InvalidInput)
    except InvalidInput as error:
        example = json.dumps(example_of(codec.json_schema()))
        raise CommandError(f"{error} Pass the input as JSON, such as --input '{example}'.") from error
