"""Durable, typed job chains that commit with your database transaction."""

__version__ = "0.1.0"
