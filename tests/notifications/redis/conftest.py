from tests.support.servers.redis import _shared_redis, redis_server, use_redis

__all__ = ("_shared_redis", "redis_server", "use_redis")
