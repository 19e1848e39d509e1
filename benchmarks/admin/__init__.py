"""The admin at ten million jobs: ``python -m benchmarks.admin fill`` makes them, ``measure`` visits every page.

``fill`` makes a PostgreSQL database that stays; ``drop`` removes it.
"""
