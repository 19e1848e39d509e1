"""Where the pages of the admin are."""

ADMIN = "/admin/"
DASHBOARD = f"{ADMIN}django_jobchains/"


def list_of(model: str) -> str:
    return f"{DASHBOARD}{model}/"


def chain_page(id_: str) -> str:
    return f"{list_of('chain')}{id_}/change/"


def job_page(id_: str) -> str:
    return f"{list_of('job')}{id_}/change/"
