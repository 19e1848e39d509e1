"""Run with ``manage.py test`` in this folder's parent, or with pytest."""
