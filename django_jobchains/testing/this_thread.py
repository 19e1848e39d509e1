"""The thread of a test, for async attempts."""

import asyncio
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async

from django_jobchains.attempts.async_calls import Result
from django_jobchains.attempts.handler_task import create_library_task


class ThisThread:
    """The thread of the test, which runs the functions of async handlers on its connection."""

    def call(self, function: Callable[[], Any]) -> "asyncio.Future[Result[Any]]":
        return create_library_task(sync_to_async(Result)(function))

    def post(self, call: Callable[[], object]) -> None:
        raise NotImplementedError  # Only used for attempts that a worker abandons.

    async def borrow(self) -> "ThisThread":
        return self

    def give_back(self, thread: "ThisThread") -> None:
        pass
