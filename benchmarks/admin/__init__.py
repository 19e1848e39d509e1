"""The admin at ten million jobs: ``python -m benchmarks.admin fill`` creates them, ``measure`` visits every page.

``fill`` creates a PostgreSQL database that stays until ``drop`` removes it.
"""
