"""What ``manage.py jobchains`` is made of: a file for each subcommand, and what they show things with."""
