"""Code around handlers, as in ``Processors(middleware=[LogContext(), ActorContext()])``. The first one is outermost.

Write your own as a subclass of ``Middleware`` with the hooks that you need, each a context manager.
"""

from django_jobchains.middleware.actor_context import ActorContext
from django_jobchains.middleware.hooks import Middleware
from django_jobchains.middleware.log_context import LogContext
from django_jobchains.middleware.query_budget import QueryBudget

__all__ = ("ActorContext", "LogContext", "Middleware", "QueryBudget")
