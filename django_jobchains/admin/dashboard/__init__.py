"""The dashboard: figures, charts, tables and alerts."""
