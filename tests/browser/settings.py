"""The settings of the example project, with existing users and with the server's errors on the console."""

from config.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"all": {"class": "logging.StreamHandler"}},
    "loggers": {"django": {"handlers": ["all"], "level": "INFO", "propagate": False}},
}
