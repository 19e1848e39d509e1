"""The process that starts, monitors and replaces worker processes."""
