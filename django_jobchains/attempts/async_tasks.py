"""The asyncio tasks that belong to an attempt."""

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

#: The unfinished tasks that the handler of the running attempt has started.
side_tasks: "contextvars.ContextVar[set[asyncio.Task[Any]] | None]" = contextvars.ContextVar(
    "jobchains_side_tasks", default=None
)


def follow_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Record the tasks that handlers start on this loop in their ``side_tasks``."""
    loop.set_task_factory(_create_task)  # type: ignore[arg-type]


def create_library_task(coroutine: Coroutine[Any, Any, ResultT]) -> "asyncio.Task[ResultT]":
    """Create a task that, unlike the handler's side tasks, is not cancelled when the handler ends."""
    context = contextvars.copy_context()
    context.run(side_tasks.set, None)
    return asyncio.get_running_loop().create_task(coroutine, context=context)


def _create_task(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> Any:
    task = asyncio.Task(coroutine, loop=loop, **options)
    context = options.get("context")
    tasks = side_tasks.get() if context is None else context.get(side_tasks)
    if tasks is not None and not task.done():
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    return task
