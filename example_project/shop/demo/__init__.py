"""The parts of ``manage.py demo``: the orders it places, its worker process, its output and its checks."""
