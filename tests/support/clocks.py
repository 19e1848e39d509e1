"""A clock that tests advance."""


class Clock:
    """A monotonic clock: a function to pass, or a replacement for the module ``time`` in the module that reads it."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now

    def monotonic(self):
        return self.now

    def forward(self, seconds):
        self.now += seconds
