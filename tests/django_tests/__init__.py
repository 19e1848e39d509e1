"""Django's own tests of its tasks framework, run against our backend. They are fetched, and not in this repository."""
