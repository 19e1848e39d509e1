"""Measurements: ``python -m benchmarks``. Each figure stands beside its floor, measured in turns with it.

A floor is the bare statements a queue cannot do without, in psycopg, sqlite3 or pgbench. ``benchmarks.project`` is the
Django project whose jobs are run, always by a worker process of its own.
"""
