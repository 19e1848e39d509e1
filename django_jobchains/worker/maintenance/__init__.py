"""Periodic tasks of a worker."""
