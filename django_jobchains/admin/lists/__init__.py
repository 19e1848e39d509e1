"""The changelists of chains and jobs."""
