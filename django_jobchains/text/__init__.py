"""Texts for people: errors, redaction, and readable numbers and times."""
