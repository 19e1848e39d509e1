"""A module whose import starts a thread, as some libraries do."""

import threading

threading.Thread(target=threading.Event().wait, name="of-a-library", daemon=True).start()


def set_up():
    """Do nothing: the import is enough."""
