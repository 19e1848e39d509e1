"""An app for worker processes of the tests: jobs with effects, and faults that the environment asks for."""
