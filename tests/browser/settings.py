"""The example project's own, and what its server has to say about errors is heard."""

from config.settings import *  # noqa: F403

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"all": {"class": "logging.StreamHandler"}},
    "loggers": {"django": {"handlers": ["all"], "level": "INFO", "propagate": False}},
}
