"""Child processes for functions that crash, leak or hang. Their public names are in ``django_jobchains.pools``."""
