"""PgBouncer in transaction mode, where each transaction may use another session of the server."""

import os
from contextlib import suppress
from functools import cache

import psycopg

from tests.support.servers.debian import program, program_of_release
from tests.support.servers.programs import ServerProgram

CONFIGURATION = """
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
ignore_startup_parameters = extra_float_digits,options
{options}
"""


@cache
def command():
    return program("pgbouncer", "pgbouncer", "libc-ares2", "libevent-2.1-7")


@cache
def command_that_prepares():
    """Return the command of a version that knows which client has prepared which statement."""
    libraries = ("libpam0g", "libssl3t64", "libsystemd0", "libaudit1", "libcap-ng0", "libcap2", "libzstd1", "zlib1g")
    return program_of_release("trixie", "pgbouncer", "pgbouncer", "libcares2", "libevent-2.1-7t64", *libraries)


class Pooler(ServerProgram):
    """PgBouncer with a pool of ``size`` sessions of the ``server``. ``options``: more lines of its file."""

    def __init__(self, folder, server, size, options="", command=command):
        super().__init__(folder)
        self._command = command()
        self._file = folder / "pgbouncer.ini"
        texts = {"server": server, "port": self.port, "size": size, "options": options}
        self._file.write_text(CONFIGURATION.format(**texts))

    def start(self):
        # PgBouncer refuses to run as root.
        as_user = ("-u", "nobody") if os.geteuid() == 0 else ()
        self.run(*self._command, *as_user, str(self._file))
        return self

    def environment(self, direct, user="postgres"):
        """Return the environment of a process behind the pooler. ``direct``: the URL of the server, for LISTEN."""
        url = f"postgresql://{user}@127.0.0.1:{self.port}/"
        return {"JOBCHAINS_TEST_DATABASE": url, "JOBCHAINS_TEST_DIRECT": direct}

    def show(self, what):
        """Return the rows of one of the tables of PgBouncer's console."""
        options = {"dbname": "pgbouncer", "user": "postgres", "autocommit": True, "connect_timeout": 5}
        with psycopg.connect(host="127.0.0.1", port=self.port, **options) as console:
            # The console understands only the simple protocol.
            result = console.pgconn.exec_(f"SHOW {what}".encode())
        names = [result.fname(column).decode() for column in range(result.nfields)]
        rows = [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]
        return [dict(zip(names, [(value or b"").decode() for value in row], strict=True)) for row in rows]

    def is_ready(self):
        with suppress(psycopg.OperationalError):
            return self.show("VERSION")
