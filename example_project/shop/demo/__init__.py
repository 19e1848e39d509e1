"""What ``manage.py demo`` is made of: the orders it places, the worker it starts, what it shows and checks."""
