"""Ready-made values of ``Isolation``: ``isolation=presets.process()``. Each call returns a fresh value.

``dataclasses.replace`` changes one: ``replace(presets.process(), max_workers=2)``.
"""

from django_jobchains.isolation import Isolation


def inline() -> Isolation:
    """Run functions on the calling thread. The process is not protected, and nothing becomes slower."""
    return Isolation("inline")


def thread() -> Isolation:
    """Run functions on another thread, so that the caller can stop waiting for one that hangs."""
    return Isolation("thread")


def process() -> Isolation:
    """Run functions in reusable child processes, without limits."""
    return Isolation("process")


def transient() -> Isolation:
    """Run each function in a fresh child process that ends with it."""
    return Isolation("transient")


def balanced() -> Isolation:
    """Run functions in reusable child processes that are replaced before leaks do harm, and end when they are idle."""
    return Isolation("process", max_jobs_per_worker=100, max_rss="500M", idle_ttl=300)
