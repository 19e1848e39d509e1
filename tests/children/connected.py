"""A module whose import opens a database connection, as some projects do."""

from django.db import connection

connection.ensure_connection()


def set_up():
    """Do nothing: the import is enough."""
