"""A forked child process that reports what its calls return."""

import json
import os
import signal
import threading

from django.db import connections


class Child:
    """Make these calls one after another in a fork of this process."""

    def __init__(self, calls, seconds=60):
        connections.close_all()  # two processes must not share a connection
        read, write = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _answer(calls, write)
        os.close(write)
        self._answers = os.fdopen(read)
        self._deadline = threading.Timer(seconds, os.kill, [self._pid, signal.SIGKILL])
        self._deadline.start()

    def answer(self):
        """Return the result of the next call. Raise an error if it failed or hung."""
        line = self._answers.readline()
        assert line, "The child hung."
        return json.loads(line)

    def end(self):
        self._answers.close()
        os.waitpid(self._pid, 0)
        self._deadline.cancel()


def _answer(calls, write):
    for call in calls:
        try:
            answer = call()
        except BaseException as error:
            answer = repr(error)
        os.write(write, f"{json.dumps(answer)}\n".encode())
    os._exit(0)
