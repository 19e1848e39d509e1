"""Attempts in child processes: what the worker sends and receives, and what runs in the child."""
