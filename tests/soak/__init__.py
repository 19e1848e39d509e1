"""An hour of work of all kinds, while everything that can fail does.

    python -m tests.soak --minutes 60 --rate 62

``jobs`` and ``models`` are the project, ``load`` enqueues and acts like people, ``faults`` breaks things, and
``oracle`` compares what the business tables and the journals of all processes say.
"""
