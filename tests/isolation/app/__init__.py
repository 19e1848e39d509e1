"""Jobs that run in every isolation."""
