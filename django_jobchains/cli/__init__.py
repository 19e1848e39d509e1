"""The subcommands of ``manage.py jobchains``."""
