"""The part of a worker that runs records: rows of the project's own tables."""
