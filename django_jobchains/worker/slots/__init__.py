"""The pools in which attempts run: threads, and an event loop."""
