"""What runs inside a peer's environment: ``python -m benchmarks.peers.programs PROGRAM COMMAND [COUNT [GAP_SECONDS]]``.

A program is a module named after its system, with three functions:

- ``prepare()`` makes the tables in an empty database (or empties what is not a database);
- ``worker()`` runs the handlers until it is told to stop;
- ``client()`` is a context manager that gives a ``Client``.

Its handlers do nothing: one marks the time, another enqueues the next step and marks only in the last one.
"""
