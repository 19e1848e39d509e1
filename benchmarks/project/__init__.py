"""A Django project with a few job types and a table to write to."""
