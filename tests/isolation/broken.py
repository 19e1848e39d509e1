"""A set-up for child processes that fails, so that attempts run in threads of the test's process."""


def refuse() -> None:
    raise RuntimeError("no child for this test")
