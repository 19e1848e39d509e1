"""The contract of a tasks backend's worker, as a public harness for due work states it."""
