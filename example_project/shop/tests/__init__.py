"""Tests of the shop. Run them with ``manage.py test`` or with pytest."""
