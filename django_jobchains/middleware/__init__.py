"""What runs around handlers: ``Processors(middleware=[LogContext(), Tenants()])``, the first outermost.

Your own is a subclass of ``Middleware`` with the hooks it needs, each a context manager.
"""

from django_jobchains.middleware.hooks import Hook, Middleware, around, checked_middleware

__all__ = ("Hook", "Middleware", "around", "checked_middleware")
