"""Benchmarks, run by ``python -m benchmarks``. Each figure is compared with a floor that is measured in turns with it.

A floor consists of the bare statements that a queue needs at least, in psycopg, sqlite3 or pgbench.
``benchmarks.project`` is the Django project whose jobs are run, always by separate worker processes.
"""
