BACKEND = "django_jobchains.tasks_backend.JobchainsBackend"
BACKENDS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]},
    "patient": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 3, "backoff": 0}},
    "isolated": {"BACKEND": BACKEND, "OPTIONS": {"isolation": "process"}},
}
