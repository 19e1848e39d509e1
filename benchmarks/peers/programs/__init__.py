"""Runs in a peer's environment: ``python -m benchmarks.peers.programs PROGRAM COMMAND [COUNT [GAP_SECONDS]]``.

A program is a module named after its system, with three functions:

- ``prepare()`` creates the tables in an empty database, or empties a store that is not a database.
- ``worker()`` runs the handlers until it is stopped.
- ``client()`` is a context manager that returns a ``Client``.

One handler records the time. Another enqueues the next step, and records the time in the last step. They do no other
work.
"""
