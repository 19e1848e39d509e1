import tests.processors.no_such_module  # type: ignore[import-not-found] # noqa: F401
