"""Database connections, ids, pages, migrations, and hooks of forks, below the models and the store."""

import os
from collections.abc import Callable


def call_in_forks(function: Callable[[], object]) -> None:
    """Call a function in each process that this one forks. Windows cannot fork processes, and has no such hook."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
